-- The shop's own tables. The domain events beside them (tailrace.events) are made by `tailrace init`.

CREATE TABLE customers (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL,
    email      text NOT NULL,
    city       text NOT NULL,
    joined_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE products (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL,
    description text NOT NULL,
    price       numeric(10, 2) NOT NULL
);

CREATE TABLE orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    product_id  bigint NOT NULL REFERENCES products,
    quantity    integer NOT NULL,
    amount      numeric(12, 2) NOT NULL,
    status      text NOT NULL DEFAULT 'placed',  -- placed, paid, shipped, cancelled
    placed_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON orders (customer_id);
