"""The report: one HTML page over the warehouse's tables. Plain functions from rows to text; nothing here needs Spark.

markup.py makes HTML that cannot be broken by what is put into it, charts.py draws, sections.py tells one table each,
page.py puts them together. The page loads nothing from anywhere and runs no script.
"""
