"""What pages are made of: charts, tables, tabs, states in one word, and the painter that renders them."""
