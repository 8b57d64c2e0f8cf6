"""Planning's rules that need code; those that do not are rows of launch/rules/table.yaml."""
