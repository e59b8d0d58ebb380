-- Takes the key for a request, or returns what is there.
-- KEYS[1]: the key. ARGV[1]: the lease, a text that only this request has. ARGV[2]: milliseconds until the lease ends.
-- Returns nil if the request has the lease, otherwise the lease of another request or a result.
local found = redis.call('GET', KEYS[1])
if found then
	return found
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
