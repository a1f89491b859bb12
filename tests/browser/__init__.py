"""The demo page in a real Chromium."""
