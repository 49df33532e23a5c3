"""The operating system: files, processes, control groups, threads."""
