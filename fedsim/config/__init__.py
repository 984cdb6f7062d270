"""The configuration of a run: its settings, their validation, files and presets."""
