"""What follows from an event, across streams and time: process managers, their commands and timers."""
