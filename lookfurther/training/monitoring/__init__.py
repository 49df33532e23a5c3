"""What a run reports while it trains: metrics, statistics of episodes, loggers and the console."""
