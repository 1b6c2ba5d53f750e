/* projection
# A window over one of the key's two columns: that one is followed.
key = ["customer_id", "order_id"]
sink = { kind = "parquet", sink = "lake" }
inputs.orders = "shop.public.orders"
*/
SELECT customer_id,
       id AS order_id,
       row_number() OVER each AS number,
       lag(amount) OVER each AS before,
       sum(amount) OVER each AS so_far
FROM orders
WHERE customer_id IS NOT NULL
WINDOW each AS (PARTITION BY customer_id ORDER BY id)
