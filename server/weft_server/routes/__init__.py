"""The HTTP routes, one file per noun. They translate; what is decided is decided in the rooms behind them."""
