"""The scripts that run inside Redis. Each touches one bucket (one hash tag) or one key, and a bounded number of rows.

They are sent as text each time, a kilobyte beside some hundred rows, so that a restarted server needs no care.
"""

from __future__ import annotations

# How a script reads the epoch of a row, and whether it is a tombstone: each format begins with the epoch.
_STORED = """
local function stored(key, format)
  if format == 'hash' then
    local held = redis.call('HMGET', key, '_epoch', '_deleted')
    return tonumber(held[1] or nil), held[2] ~= false
  end
  local head = redis.call('GETRANGE', key, 0, 47)
  if format == 'msgpack' then  -- a map's header (1, 3 or 5 bytes), the name, a uint 64
    local at = string.find(head, '\\166_epoch\\207', 1, true)
    if not at or at > 6 or #head < at + 15 then return nil, false end
    local epoch = 0
    for i = at + 8, at + 15 do epoch = epoch * 256 + string.byte(head, i) end
    return epoch, string.sub(head, at + 16) == '\\168_deleted\\195'
  end
  local epoch = string.match(head, '^{"_epoch":(%d+)')
  return tonumber(epoch or nil), string.find(head, ',"_deleted":true}', 1, true) ~= nil
end
"""

# KEYS: bucket fence, manifest, tombstones, then one key per row.
# ARGV: epoch, log id, format, length of the rows' common prefix, milliseconds after which rows go by themselves (0:
# they stay), what stands for a deleted row (of a hash the script knows it); then per row a count and so many values:
# field, value, … (hash), the text or bytes (json, msgpack), nothing (a deletion).
# A bucket whose fence has this epoch or a later one has the row or a newer one: nothing to do. Where none of the rows
# is there, as in a first load, each takes one call instead of four.
APPLY = (
    _STORED
    + """
local held = redis.call('HMGET', KEYS[1], 'log_id', 'epoch')
if held[1] and held[1] ~= ARGV[2] then
  return redis.error_reply('FENCED its rows come from log ' .. held[1])
end
local epoch = tonumber(ARGV[1])
if held[2] and tonumber(held[2]) >= epoch then return 0 end
local format, skip, ttl, at, written = ARGV[3], tonumber(ARGV[4]) + 1, tonumber(ARGV[5]), 7, 0
local texts, fresh = {}, redis.call('EXISTS', unpack(KEYS, 4)) == 0
for i = 4, #KEYS do texts[i - 3] = string.sub(KEYS[i], skip) end
-- The first write: a full server refuses a script at this one or not at all.
if fresh then redis.call('SADD', KEYS[2], unpack(texts)) end
for i = 4, #KEYS do
  local key, text, count = KEYS[i], texts[i - 3], tonumber(ARGV[at])
  local newest = not fresh and stored(key, format)
  if not newest or newest <= epoch then
    if not fresh then redis.call('SADD', KEYS[2], text) end
    if format == 'hash' then
      if not fresh then redis.call('DEL', key) end
      if count == 0 then
        redis.call('HSET', key, '_epoch', ARGV[1], '_deleted', '1')
      else
        redis.call('HSET', key, '_epoch', ARGV[1], unpack(ARGV, at + 1, at + count))
      end
    elseif count == 0 then
      redis.call('SET', key, ARGV[6])
    else
      redis.call('SET', key, ARGV[at + 1])
    end
    if count == 0 then
      redis.call('SADD', KEYS[3], text)
    elseif not fresh then
      redis.call('SREM', KEYS[3], text)
    end
    if count > 0 and ttl > 0 then redis.call('PEXPIRE', key, ttl) end
    written = written + 1
  end
  at = at + count + 1
end
return written
"""
)

# KEYS: bucket fence. ARGV: epoch, then the fence's fields. Fences of a bucket only go forward.
ADVANCE_BUCKET = """
local held = redis.call('HGET', KEYS[1], 'epoch')
if held and tonumber(held) >= tonumber(ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
"""

# KEYS: generation fence. ARGV: log id, epoch and hash it must have ('' each: must not be there), then the new fields.
ADVANCE = """
local held = redis.call('HMGET', KEYS[1], 'log_id', 'epoch', 'epoch_hash')
local same = (held[1] or '') == ARGV[1] and (held[2] or '') == ARGV[2] and (held[3] or '') == ARGV[3]
local done = held[1] == ARGV[5] and held[2] == ARGV[7] and held[3] == ARGV[9]
if not same and not done then
  return redis.error_reply('FENCED it moved to epoch ' .. (held[2] or 'none') .. ' meanwhile')
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
return 1
"""

# KEYS: tombstones, manifest. ARGV: epoch of the fence, format, common prefix of the rows, how many at most.
# Removes tombstones that the fence has passed; returns how many.
SWEEP = (
    _STORED
    + """
local removed, later = 0, {}
for _, text in ipairs(redis.call('SPOP', KEYS[1], ARGV[4])) do
  local key = ARGV[3] .. text
  local epoch, deleted = stored(key, ARGV[2])
  if deleted and epoch <= tonumber(ARGV[1]) then
    redis.call('DEL', key)
    redis.call('SREM', KEYS[2], text)
    removed = removed + 1
  elseif deleted then
    later[#later + 1] = text
  end
end
for _, text in ipairs(later) do redis.call('SADD', KEYS[1], text) end
return removed
"""
)

# KEYS: live pointer. ARGV: what it must be ('' for nothing), what it becomes.
PROMOTE = """
local live = redis.call('GET', KEYS[1]) or ''
if live == ARGV[2] then return 0 end
if live ~= ARGV[1] then return redis.error_reply('FENCED it shows generation ' .. live .. ' meanwhile') end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""
