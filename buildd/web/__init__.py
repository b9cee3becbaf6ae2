"""What a browser and a monitoring system see: pages, live streams, metrics. Reads; changes nothing."""
