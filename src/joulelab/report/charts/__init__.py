"""Define charts as data (`chart_model`), and draw them for pages and for print."""
