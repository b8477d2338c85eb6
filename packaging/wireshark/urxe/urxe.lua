-- Decodes the headers of XRC, FLUSH and ATOMIC WRITE in Wireshark and tshark, where Wireshark itself shows
-- "Unknown/Vendor Specific Data", and verifies the ICRC of every RoCE packet.
-- Fields that Wireshark has keep their names, so that filters, columns and colours apply to these packets, too.

local urxe = Proto("urxe", "RoCE headers and ICRC by urxe")
urxe.prefs.verify_icrc = Pref.bool("Verify the ICRC", true, "Compute the ICRC of each packet (slow for large captures)")

local PLACEMENT_BITS, SELECTIVITY_BITS = 0xf, 0x30
local YES_NO = { "Yes", "No" }
local TIMERS = { -- Milliseconds, by code from 0.
  "655.36", "0.01", "0.02", "0.03", "0.04", "0.06", "0.08", "0.12", "0.16", "0.24", "0.32", "0.48", "0.64", "0.96", "1.28", "1.92",
  "2.56", "3.84", "5.12", "7.68", "10.24", "15.36", "20.48", "30.72", "40.96", "61.44", "81.92", "122.88", "163.84", "245.76",
  "327.68", "491.52",
}
local timer_names = {}
for i, ms in ipairs(TIMERS) do timer_names[i - 1] = ms .. " ms" end

local f = {
  opcode = ProtoField.string("urxe.opcode", "Opcode"),
  srq = ProtoField.uint24("urxe.xrceth.srq", "XRC Shared Receive Queue", base.HEX),
  placement = ProtoField.uint32("urxe.feth.placement", "Placement Type", base.HEX, nil, PLACEMENT_BITS),
  global = ProtoField.bool("urxe.feth.placement.global", "Global Visibility", 32, YES_NO, 0x1),
  persistent = ProtoField.bool("urxe.feth.placement.persistent", "Persistence", 32, YES_NO, 0x2),
  selectivity = ProtoField.uint32("urxe.feth.selectivity", "Selectivity Level", base.DEC,
    { [0] = "Memory Region Range", [1] = "Memory Region" }, SELECTIVITY_BITS),
  atomic_write = ProtoField.bytes("urxe.atomic_write.data", "ATOMIC WRITE Data"),
  icrc_status = ProtoField.uint8("urxe.icrc.status", "ICRC Status", base.DEC, { [0] = "Bad", [1] = "Good" }),
  icrc_expected = ProtoField.uint32("urxe.icrc.expected", "Expected ICRC", base.HEX),

  va = ProtoField.uint64("infiniband.reth.va", "Virtual Address", base.HEX),
  rkey = ProtoField.uint32("infiniband.reth.r_key", "Remote Key", base.HEX),
  dmalen = ProtoField.uint32("infiniband.reth.dmalen", "DMA Length", base.DEC),
  swap = ProtoField.uint64("infiniband.atomiceth.swapdt", "Swap (Or Add) Data", base.DEC),
  compare = ProtoField.uint64("infiniband.atomiceth.cmpdt", "Compare Data", base.DEC),
  syndrome = ProtoField.uint8("infiniband.aeth.syndrome", "Syndrome", base.DEC),
  syndrome_opcode = ProtoField.uint8("infiniband.aeth.syndrome.opcode", "OpCode", base.DEC,
    { [0] = "Ack", [1] = "RNR Nak", [2] = "Reserved", [3] = "Nak" }, 0x60),
  credits = ProtoField.uint8("infiniband.aeth.syndrome.credit_count", "Credit Count", base.DEC, nil, 0x1f),
  timer = ProtoField.uint8("infiniband.aeth.syndrome.timer", "Timer", base.DEC, timer_names, 0x1f),
  error_code = ProtoField.uint8("infiniband.aeth.syndrome.error_code", "Error Code", base.DEC,
    { [0] = "PSN Sequence Error", [1] = "Invalid Request", [2] = "Remote Access Error", [3] = "Remote Operational Error",
      [4] = "Invalid RD Request" }, 0x1f),
  msn = ProtoField.uint24("infiniband.aeth.msn", "Message Sequence Number", base.DEC),
  original = ProtoField.uint64("infiniband.atomicacketh.origremdt", "Original Remote Data", base.DEC),
  immdt = ProtoField.bytes("infiniband.immdt", "Immediate Data"),
  ieth = ProtoField.bytes("infiniband.ieth", "RKey"),
  payload = ProtoField.bytes("infiniband.payload", "Payload"),
  icrc = ProtoField.uint32("infiniband.invariant.crc", "Invariant CRC", base.HEX),
}
local fields = {}
for _, field in pairs(f) do fields[#fields + 1] = field end
urxe.fields = fields

local wrong_icrc = ProtoExpert.new("urxe.icrc.bad", "Wrong ICRC", expert.group.CHECKSUM, expert.severity.ERROR)
local too_short = ProtoExpert.new("urxe.short", "Packet is shorter than its headers", expert.group.MALFORMED, expert.severity.ERROR)
urxe.experts = { wrong_icrc, too_short }

local bth_opcode = Field.new("infiniband.bth.opcode")
local undecoded = Field.new("infiniband.vendor")
local bth_destqp = Field.new("infiniband.bth.destqp")

-- Each header: its name and length, and the function that adds its fields.
local SYNDROME_DETAIL = { [0] = f.credits, [1] = f.timer, [3] = f.error_code }
local HEADERS = {
  xrceth = { "XRC Extended Transport Header", 4, function(t, b) t:add(f.srq, b(1, 3)) end },
  feth = { "FLUSH Extended Transport Header", 4, function(t, b)
    for _, field in ipairs({ f.placement, f.global, f.persistent, f.selectivity }) do t:add(field, b) end
  end },
  reth = { "RDMA Extended Transport Header", 16, function(t, b)
    t:add(f.va, b(0, 8))
    t:add(f.rkey, b(8, 4))
    t:add(f.dmalen, b(12, 4))
  end },
  -- As in Wireshark, the address and the key have the names of the RETH's.
  atomiceth = { "Atomic Extended Transport Header", 28, function(t, b)
    t:add(f.va, b(0, 8))
    t:add(f.rkey, b(8, 4))
    t:add(f.swap, b(12, 8))
    t:add(f.compare, b(20, 8))
  end },
  aeth = { "ACK Extended Transport Header", 4, function(t, b)
    local syndrome = t:add(f.syndrome, b(0, 1))
    syndrome:add(f.syndrome_opcode, b(0, 1))
    local detail = SYNDROME_DETAIL[b(0, 1):bitfield(1, 2)]
    if detail then syndrome:add(detail, b(0, 1)) end
    t:add(f.msn, b(1, 3))
  end },
  atomicacketh = { "Atomic ACK Extended Transport Header", 8, function(t, b) t:add(f.original, b) end },
  immdt = { "Immediate Data", 4, function(t, b) t:add(f.immdt, b) end },
  ieth = { "Invalidate Extended Transport Header", 4, function(t, b) t:add(f.ieth, b) end },
}

-- Name and headers by the low five bits of the opcode. Requests of XRC have an XRCETH before them.
local OPERATIONS = {
  [0x00] = { "SEND First" },
  [0x01] = { "SEND Middle" },
  [0x02] = { "SEND Last" },
  [0x03] = { "SEND Last Immediate", "immdt" },
  [0x04] = { "SEND Only" },
  [0x05] = { "SEND Only Immediate", "immdt" },
  [0x06] = { "RDMA WRITE First", "reth" },
  [0x07] = { "RDMA WRITE Middle" },
  [0x08] = { "RDMA WRITE Last" },
  [0x09] = { "RDMA WRITE Last Immediate", "immdt" },
  [0x0a] = { "RDMA WRITE Only", "reth" },
  [0x0b] = { "RDMA WRITE Only Immediate", "reth", "immdt" },
  [0x0c] = { "RDMA READ Request", "reth" },
  [0x0d] = { "RDMA READ response First", "aeth" },
  [0x0e] = { "RDMA READ response Middle" },
  [0x0f] = { "RDMA READ response Last", "aeth" },
  [0x10] = { "RDMA READ response Only", "aeth" },
  [0x11] = { "Acknowledge", "aeth" },
  [0x12] = { "ATOMIC Acknowledge", "aeth", "atomicacketh" },
  [0x13] = { "CmpSwap", "atomiceth" },
  [0x14] = { "FetchAdd", "atomiceth" },
  [0x16] = { "SEND Last Invalidate", "ieth" },
  [0x17] = { "SEND Only Invalidate", "ieth" },
  [0x1c] = { "FLUSH", "feth", "reth" },
  [0x1d] = { "ATOMIC WRITE", "reth" },
}
local RC, XRC = 0x00, 0xa0
local ICRC_LEN, GRH_LEN, UDP_LEN = 4, 40, 8

-- Adds the headers and the payload that follow the BTH, which starts at `bth`, up to the ICRC at `icrc_at`, or as far as captured.
local function add_headers(tvb, bth, icrc_at, pinfo, root)
  local opcode = tvb(bth, 1):uint()
  local low = opcode % 32
  local transport, operation = opcode - low, OPERATIONS[low]
  if not operation or (transport ~= RC and transport ~= XRC) then return end
  local name = (transport == XRC and "XRC " or "RC ") .. operation[1]
  local is_whole, limit = icrc_at + ICRC_LEN <= tvb:len(), math.min(icrc_at, tvb:len())
  local tree = root:add(urxe, tvb(bth), name)
  tree:add(f.opcode, tvb(bth, 1), name)
  local info = string.format("%s QP=0x%06x", name, bth_destqp().value)

  local sequence = { select(2, (table.unpack or unpack)(operation)) }
  local is_response = low >= 0x0d and low <= 0x12
  if transport == XRC and not is_response then table.insert(sequence, 1, "xrceth") end
  local at = bth + 12
  for _, header in ipairs(sequence) do
    local title, length, add = (table.unpack or unpack)(HEADERS[header])
    if at + length > limit then
      if is_whole then tree:add_proto_expert_info(too_short) end
      return
    end
    local bytes = tvb(at, length)
    add(tree:add(bytes, title), bytes)
    if header == "xrceth" then info = info .. string.format(" SRQ=0x%06x", bytes(1, 3):uint()) end
    at = at + length
  end
  pinfo.cols.info = info
  local length = math.min(icrc_at - tvb(bth + 1, 1):bitfield(2, 2), limit) - at
  if length > 0 then tree:add(low == 0x1d and f.atomic_write or f.payload, tvb(at, length)) end
  if is_whole then tree:add_le(f.icrc, tvb(icrc_at, ICRC_LEN)) end
end

-- Wireshark has bit32 with Lua 5.2 and `bit` with 5.1; Lua 5.3 and later have operators, which 5.1 does not parse.
local bits = bit32 or bit or load([[
  return { bxor = function(a, b) return a ~ b end, band = function(a, b) return a & b end,
           bor = function(a, b) return a | b end, rshift = function(a, n) return a >> n end }]])()
local bxor, band, bor, rshift = bits.bxor, bits.band, bits.bor, bits.rshift
local CRC = {}
for byte = 0, 255 do
  local crc = byte
  for _ = 1, 8 do crc = bxor(rshift(crc, 1), band(crc, 1) == 1 and 0xedb88320 or 0) end
  CRC[byte] = crc
end

-- Returns the ICRC of `tvb` from `from` to `to`, with ones in place of the fields that `masks` gives as
-- (offset in bytes from `from`) = (bits), and of the local route header before `from`.
local function icrc_of(tvb, from, to, masks)
  local raw, crc = tvb:raw(from, to - from), 0xffffffff
  for _ = 1, 8 do crc = bxor(rshift(crc, 8), CRC[bxor(band(crc, 0xff), 0xff)]) end
  for i = 1, #raw do
    local byte = raw:byte(i)
    if masks[i - 1] then byte = bor(byte, masks[i - 1]) end
    crc = bxor(rshift(crc, 8), CRC[band(bxor(crc, byte), 0xff)])
  end
  return bxor(crc, 0xffffffff) % 2 ^ 32
end

local IPV4 = { [1] = 0xff, [8] = 0xff, [10] = 0xff, [11] = 0xff }
local IPV6 = { [0] = 0x0f, [1] = 0xff, [2] = 0xff, [3] = 0xff, [7] = 0xff }

-- Returns the offset of the ICRC, that of the layer that it covers first, and the masks of the fields that it does not cover,
-- or nil if the packet is neither RoCEv2 nor RoCEv1.
local function find_icrc(tvb, bth, pinfo)
  local from, fixed, icrc_at
  if bth >= UDP_LEN + 20 and tvb(bth - 6, 2):uint() == 4791 then
    local is_v6 = tostring(pinfo.net_dst):find(":", 1, true)
    from, fixed = bth - UDP_LEN - (is_v6 and 40 or 20), is_v6 and IPV6 or IPV4
    if from < 0 or tvb(from, 1):bitfield(0, 4) ~= (is_v6 and 6 or 4) then return end
    icrc_at = bth - UDP_LEN + tvb(bth - 4, 2):uint() - ICRC_LEN
  elseif bth >= GRH_LEN and tvb(bth - GRH_LEN, 1):bitfield(0, 4) == 6 and tvb(bth - GRH_LEN + 6, 1):uint() == 0x1b then
    from, fixed = bth - GRH_LEN, IPV6
    icrc_at = bth + tvb(from + 4, 2):uint() - ICRC_LEN
  else
    return
  end
  if icrc_at < bth + 12 then return end
  local masks = { [bth - from + 4] = 0xff }
  for at, mask in pairs(fixed) do masks[at] = mask end
  if fixed == IPV4 or bth - from > GRH_LEN then
    masks[bth - from - 2], masks[bth - from - 1] = 0xff, 0xff -- UDP checksum
  end
  return icrc_at, from, masks
end

function urxe.dissector(_, pinfo, root)
  local opcode = bth_opcode()
  if not opcode then return end
  local tvb, bth = opcode.source, opcode.offset
  local icrc_at, from, masks = find_icrc(tvb, bth, pinfo)
  if not icrc_at then return end
  if undecoded() then add_headers(tvb, bth, icrc_at, pinfo, root) end
  if not urxe.prefs.verify_icrc or icrc_at + ICRC_LEN > tvb:len() then return end
  local range = tvb(icrc_at, ICRC_LEN)
  local expected = icrc_of(tvb, from, icrc_at, masks)
  local good = range:le_uint() == expected
  local tree = root:add(urxe, range, good and "ICRC is correct" or "ICRC is wrong")
  tree:add(f.icrc_status, range, good and 1 or 0):set_generated()
  if not good then
    tree:add(f.icrc_expected, range, expected):set_generated()
    tree:add_proto_expert_info(wrong_icrc)
  end
end

register_postdissector(urxe)
