"""Training: recipes as data, schedules, and the run that fits, resumes and reports."""
