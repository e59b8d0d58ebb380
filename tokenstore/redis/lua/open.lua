-- open: the members of a shard's open set after a place in it, by score and then by
-- member. Members before the place may go meanwhile without moving it. Loaded without
-- the prelude.
--
-- KEYS 1 the shard's open set
-- ARGV 1 least age, ms
--      2 the place's score
--      3 the place's member; '' is before all members with that score
--      4 the most members to return
-- Returns {member, score, member, score, ...}.
local byte, count = string.byte, tonumber(ARGV[4])

-- Redis orders members by bytes. Lua would compare strings by locale.
local function after(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- The rank of the first member after the place. Thousands of members may share a
-- score, so this is a binary search among them.
local from = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[2])
local past = from + redis.call('ZCOUNT', KEYS[1], ARGV[2], ARGV[2])
while from < past do
  local mid = math.floor((from + past) / 2)
  if after(redis.call('ZRANGE', KEYS[1], mid, mid)[1], ARGV[3]) then past = mid else from = mid + 1 end
end

local t = redis.call('TIME')
local newest = t[1] * 1000 + math.floor(t[2] / 1000) - ARGV[1]
local page = redis.call('ZRANGE', KEYS[1], from, from + count - 1, 'WITHSCORES')
while #page > 0 and tonumber(page[#page]) > newest do
  page[#page], page[#page - 1] = nil, nil
end
return page
