-- Partitions the table of records of MySQL or MariaDB by the hash of the key. Stop the services before.
ALTER TABLE idem_records PARTITION BY KEY (k) PARTITIONS 16;
