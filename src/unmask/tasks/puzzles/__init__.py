"""Sudoku and countdown: boards, exact solutions, puzzles by the thousand."""
