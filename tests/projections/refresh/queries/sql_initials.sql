/* projection
# Two parts of a key that are computed, of a result that computes one of them first; one is NULL for some rows.
key = ["initial", "size"]
sink = { kind = "parquet", sink = "lake" }
inputs.orders = "shop.public.orders"
*/
WITH sized AS (
    SELECT upper(status) AS initial, CASE WHEN amount > 1 THEN 'large' WHEN amount <= 1 THEN 'small' END AS size, amount
    FROM orders
)
SELECT initial, size, count(*) AS orders, max(amount) AS most FROM sized WHERE size IS NOT NULL AND initial IS NOT NULL GROUP BY initial, size
