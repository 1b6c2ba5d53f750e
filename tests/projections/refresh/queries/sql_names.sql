/* projection
# A result by a column that is not its key: where a row was before matters, too.
key = "name"
sink = { kind = "parquet", sink = "lake" }
inputs.totals = { result = "sql_totals" }
*/
SELECT name, count(*) AS customers, sum(total) AS total, max(most) AS most
FROM totals
WHERE name IS NOT NULL
GROUP BY name
