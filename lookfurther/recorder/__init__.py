"""The recorder: a page in the browser that plays an environment and keeps what was played."""
