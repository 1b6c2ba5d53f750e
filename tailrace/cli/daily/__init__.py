"""The daily commands: init, capture, status, plan, run, replay, verify, doctor, demo."""
