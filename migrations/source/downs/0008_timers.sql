DROP TABLE tailrace.timers;
