-- Who may act for a fleet, and what its books say. Whoever no longer holds the lease changes nothing.
--
-- KEYS[1] the lease, which expires by itself; KEYS[2] facts of the fleet, the last fence among them; KEYS[3] orders
-- ARGV[1] names the function, ARGV[2] the nonce of its caller; the rest are its arguments.

local LEASE, FACTS = KEYS[1], KEYS[2]
local command, nonce = ARGV[1], ARGV[2]

local function holds(fence)
  return redis.call('HGET', LEASE, 'nonce') == nonce and redis.call('HGET', LEASE, 'fence') == fence
end

local function now_ms()
  local time = redis.call('TIME')
  return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end

local function facts(taken)
  local holder, fence = unpack(redis.call('HMGET', LEASE, 'holder', 'fence'))
  return {taken, holder, fence, redis.call('PTTL', LEASE)}
end

local commands = {}

-- The same caller again, whose first answer was lost, is given what it has.
function commands.take(holder, ttl_ms)
  if redis.call('EXISTS', LEASE) == 1 and redis.call('HGET', LEASE, 'nonce') ~= nonce then return facts(0) end
  if redis.call('EXISTS', LEASE) == 0 then
    local fence = redis.call('HINCRBY', FACTS, 'fence', 1)
    redis.call('HSET', LEASE, 'nonce', nonce, 'holder', holder, 'fence', fence)
  end
  redis.call('PEXPIRE', LEASE, ttl_ms)
  return facts(1)
end

function commands.renew(fence, ttl_ms)
  return holds(fence) and redis.call('PEXPIRE', LEASE, ttl_ms) or 0
end

function commands.give_back(fence)
  return holds(fence) and redis.call('DEL', LEASE) or 0
end

-- Fields of a hash. With the first of all, the fleet's books are made.
function commands.put(fence, hash, ...)
  if not holds(fence) then return 0 end
  redis.call('HSETNX', FACTS, 'born_ms', now_ms())
  redis.call('HSET', KEYS[tonumber(hash)], ...)
  return 1
end

function commands.drop(fence, hash, ...)
  if not holds(fence) then return 0 end
  redis.call('HDEL', KEYS[tonumber(hash)], ...)
  return 1
end

return commands[command](unpack(ARGV, 3))
