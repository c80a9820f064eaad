"""Look inside a network and change it: find layers, follow the data, hollow and fill."""
