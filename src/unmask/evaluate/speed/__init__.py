"""What a step costs, against a floor measured in the same run."""
