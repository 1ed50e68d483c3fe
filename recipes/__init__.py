"""What is held fixed between arms: one YAML file per recipe, suites of arms in suites/."""
