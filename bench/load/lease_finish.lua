-- Puts the result in the place of the lease.
-- KEYS[1]: the key. ARGV[1]: the lease. ARGV[2]: the result. ARGV[3]: milliseconds until the result is forgotten.
-- Returns 1, or 0 if the lease is over.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
	return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
