-- prelude: the record format and the functions of all scripts. Each script that needs it
-- is loaded with clock.lua and this file in front. Redis makes these functions anew for
-- each call. So begin and settle try their common case before it, in begin_fresh.lua and
-- settle_completed.lua.
--
-- KEYS of all these scripts, in one slot:
--   1  the record            3  the shard's incarnation
--   2  the shard's open set  4  the response, if it has a key of its own
--   5  the evidence of what the shard's clock did
--   6  the canary, see clock.lua
--
-- A record is a packed string. record.go has the same table. Positions are those of
-- string.sub. Numbers are big-endian, and times are milliseconds.
--
--     1      version            82-87   created
--     2      state              88-93   started
--     3      kind               94-99   settled
--     4      response's place   100-105 result expires
--     5-8    attempt number     106-111 key expires
--     9-16   fence              112-117 token expires
--     17-32  nonce              118     length of domain
--     33-48  settlement ID      119     length of route
--     49-81  fingerprint        120     length of decision's author
--                               121-122 length of decision's reason
--                               123     1: the settlement was a repair
--     124-   domain, route, author, reason, rest
--
-- The scripts only compare domains. record.go says how a domain is packed.
--
-- An open record has no expiry yet. It has the times to live of its route in these places,
-- as milliseconds: of the result in 100-105 and of the key in 106-111. They are 0 in a
-- record of a version before that.
--
-- The rest is an inline response. In a pending record the rest is the record that it
-- replaced, without a response.
--
-- Fences have 64 bits and Lua's numbers have 53, so fences are compared in halves. A
-- comparison of strings would depend on the locale.

local VERSION = '\2'
local ISSUED, PENDING, COMPLETED, RELEASED, UNKNOWN = '\1', '\2', '\3', '\4', '\5'
local CLIENT, TOKEN = '\0', '\1'
local NOWHERE, INLINE, APART = '\0', '\1', '\2'
local NEVER = '\0\0\0\0\0\0'
local NO_ID = string.rep('\0', 16)
local NO_ATTEMPT = string.rep('\0', 28)
local NO_FINGERPRINT = string.rep('\0', 33)
local NO_TEXTS = string.rep('\0', 5)
local NO_REPAIR, REPAIR = '\0', '\1'

local function u32(s, i)
  local a, b, c, d = byte(s, i, i + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function p32(n)
  return char(floor(n / 16777216), floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
end

local function state(r) return sub(r, 2, 2) end
local function kind(r) return sub(r, 3, 3) end
local function place(r) return sub(r, 4, 4) end
local function attempt(r) return sub(r, 5, 32) end -- number, fence, nonce
local function bid(r) return sub(r, 9, 32) end -- fence, nonce
local function fence(r) return sub(r, 9, 16) end
local function domain(r) return sub(r, 124, 123 + byte(r, 118)) end

local function open(r) return state(r) == PENDING or state(r) == UNKNOWN end
local function idle(r) return state(r) == ISSUED or state(r) == RELEASED end

local function route(r)
  local at = 124 + byte(r, 118)
  return sub(r, at, at + byte(r, 119) - 1)
end

-- The position of the rest.
local function rest_at(r)
  local d, ro, by, hi, lo = byte(r, 118, 122)
  return 124 + d + ro + by + hi * 256 + lo
end

-- Whether fence a is below fence b. Both are strings of 8 bytes.
local function below(a, b)
  local ah, bh = u32(a, 1), u32(b, 1)
  if ah ~= bh then return ah < bh end
  return u32(a, 5) < u32(b, 5)
end

-- Whether a begin under a fence comes too late: the record has the fence of a later
-- holder, or the attempt under this fence is over.
local function stale(r, f, dom)
  if domain(r) ~= dom then return false end
  if f == fence(r) then return not open(r) end
  return below(f, fence(r))
end

-- The times to live in ms of the result and of the key that a record promises to an attempt
-- in its place. A released key has an end, and no attempt brings that forward.
local function promised(r)
  if r and open(r) then return u48(r, 100), u48(r, 106) end
  if r and state(r) == RELEASED then return 0, math.max(u48(r, 106) - now, 0) end
  return 0, 0
end

-- The time at which a record expires; 0: never.
local function ends(r)
  local s = state(r)
  if s == ISSUED then return u48(r, 112) end
  if s == COMPLETED or s == RELEASED then return u48(r, 106) end
  return 0
end

-- Whether a record has the version of these scripts and is whole.
local function readable(r)
  if #r < 123 or sub(r, 1, 1) ~= VERSION then return false end
  local s, k, p = byte(r, 2, 4)
  return s >= 1 and s <= 5 and k <= 1 and p <= 2 and rest_at(r) - 1 <= #r
end

-- The answer of a script that found an unreadable record and did nothing.
local function unreadable(r) return {'unreadable', r} end

-- Returns the record or nil, the answer to give if the record cannot be read, the incarnation
-- or false, the evidence or false, and the canary or false.
local function load()
  local r, incarnation, evidence, canary = unpack(redis.call('MGET', KEYS[1], KEYS[3], KEYS[5], KEYS[6]))
  if not r then return nil, nil, incarnation, evidence, canary end
  if not readable(r) then return nil, unreadable(r), incarnation, evidence, canary end
  local e = ends(r)
  if e > 0 and e <= now then r = nil end
  return r, nil, incarnation, evidence, canary
end

-- Writes a record. A record that has expired already is removed instead.
local function save(r)
  local e = ends(r)
  if e > 0 and e <= now then
    redis.call('DEL', KEYS[1])
  elseif e > 0 then
    redis.call('SET', KEYS[1], r, 'PXAT', e)
  else
    redis.call('SET', KEYS[1], r)
  end
end

-- The unknown record of an attempt that did not run, made from an open record r. It is
-- bound to the same request and has no response. a is the attempt, and dom is the domain
-- of its fence.
local function unanswered(r, a, dom)
  return VERSION .. UNKNOWN .. kind(r) .. NOWHERE .. a .. NO_ID .. sub(r, 49, 93) .. p48(now)
    .. sub(r, 100, 117) .. char(#dom, byte(r, 119), 0, 0, 0) .. NO_REPAIR
    .. dom .. route(r)
end

-- A record without its response.
local function bare(r)
  return sub(r, 1, 3) .. NOWHERE .. sub(r, 5, rest_at(r) - 1)
end
