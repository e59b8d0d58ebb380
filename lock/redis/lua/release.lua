-- release: deletes a lock if it is the owner's. An owner is never used again, so this may
-- be sent any number of times, however late.
--
-- KEYS 1 the lock
-- ARGV 1 owner
-- Returns 1, or 0 if the lock is gone or has another owner.
if redis.call('GETRANGE', KEYS[1], '0', '31') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
