"""The kind `model`: operations of the generated kinds in one library."""
