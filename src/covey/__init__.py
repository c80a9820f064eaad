"""The accuracy, calibration and uncertainty of an ensemble of neural networks, for about the price of one."""

__version__ = "0.1.0"
