/* projection
# Tables with commas, joined by WHERE; products are found through orders, and the key is computed of a third table.
key = "place"
sink = { kind = "parquet", sink = "lake" }

[inputs]
customers = "shop.public.customers"
orders = "shop.public.orders"
products = "shop.public.products"
*/
SELECT lower(c.city) AS place, count(*) AS orders, sum(o.quantity * p.price) AS worth
FROM products p, customers c, orders o
WHERE o.product_id = p.id AND c.id = o.customer_id AND c.city IS NOT NULL AND lower(c.city) IS NOT NULL
GROUP BY lower(c.city)
