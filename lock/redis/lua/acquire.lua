-- acquire: takes a free lock, with the function of the same name.
--
-- KEYS 1 the lock
--      2 the shard's fences
-- ARGV 1 owner, 2 holder, 3 time to live in ms, as the function has them
-- Returns "token domain" if the owner has the lock, now or since an earlier copy of this
-- call. Returns "" if another owner has it.
local token, domain = acquire(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], redis.call('TIME'))
if not token then return domain or '' end
return token .. ' ' .. domain
