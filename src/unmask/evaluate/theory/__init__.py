"""The paper's statements, measured."""
