"""Building blocks of pages: charts, tables, tabs, one-word states, and the painter that renders them."""
