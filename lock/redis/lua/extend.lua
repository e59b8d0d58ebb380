-- extend: gives a lock its full time to live again, if it is still the owner's.
--
-- KEYS 1 the lock
-- ARGV 1 owner
--      2 time to live, ms
-- Returns 1, or 0 if the lock is gone or has another owner.
if redis.call('GETRANGE', KEYS[1], '0', '31') ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
