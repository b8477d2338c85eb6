// Draws the packets of a capture. The columns come from src/page/tracks.rs.
'use strict';
(async () => {
  const meta = JSON.parse(document.getElementById('meta').textContent);
  const KINDS = ['request', 'retransmission', 'request behind a gap', 'ACK', 'NAK', 'RNR NAK', 'READ or atomic response', 'CNP', 'wrong ICRC'];
  const PAUSE = 255, FROM_REQUESTER = 1, CE = 2, REVERSE = 4;
  // What is drawn above what.
  const PRIORITY = [1, 5, 6, 3, 9, 8, 2, 7, 4];
  const NAKS = ['PSN sequence error', 'invalid request', 'remote access error', 'remote operational error', 'invalid RD request'];
  const element = id => document.getElementById(id);
  // A colour of the style sheet, of the current theme.
  const probe = document.body.appendChild(document.createElement('i'));
  const color = (name, share = 100) => {
    probe.style.color = `color-mix(in srgb, var(${name}) ${share}%, transparent)`;
    return getComputedStyle(probe).color;
  };

  async function decompress(text) {
    const binary = atob(text.trim());
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    return new Response(stream).arrayBuffer();
  }

  // Splits the bytes into tracks, and sums up the differences.
  function parse(buffer) {
    let at = 0;
    const column = (type, n) => {
      const bytes = buffer.slice(at, at += n * type.BYTES_PER_ELEMENT);
      return new type(bytes);
    };
    for (const track of meta.tracks) {
      const n = track.rows;
      const dt = column(Uint32Array, n), dn = column(Uint32Array, n), dp = column(Int32Array, n), len = column(Uint16Array, n);
      const kind = column(Uint8Array, n), flags = column(Uint8Array, n), opcode = column(Uint8Array, n), syndrome = column(Uint8Array, n);
      const rows = kind.reduce((rows, k) => rows + (k !== PAUSE), 0);
      Object.assign(track, {
        n: rows, time: new Float64Array(rows), number: new Uint32Array(rows), psn: new Int32Array(rows), expected: new Int32Array(rows),
        flight: new Int32Array(rows), len: new Uint16Array(rows), kind: new Uint8Array(rows), flags: new Uint8Array(rows),
        opcode: new Uint8Array(rows), syndrome: new Uint8Array(rows),
      });
      let time = track.start, number = 0, psn = 0, next = [0, 0], acked = [0, 0], row = 0;
      for (let i = 0; i < n; i++) {
        time += dt[i];
        if (kind[i] === PAUSE) continue;
        number += dn[i];
        psn += dp[i];
        const side = flags[i] & REVERSE ? 1 : 0;
        track.expected[row] = next[side];
        if (kind[i] === 0 || kind[i] === 2) next[side] = Math.max(next[side], psn + 1);
        if (kind[i] === 3 || kind[i] === 6) acked[side] = Math.max(acked[side], psn + 1);
        track.flight[row] = Math.max(0, next[0] - acked[0]) + Math.max(0, next[1] - acked[1]);
        track.time[row] = time / 1e9;
        track.number[row] = number;
        track.psn[row] = psn;
        track.len[row] = len[i];
        track.kind[row] = kind[i];
        track.flags[row] = flags[i];
        track.opcode[row] = opcode[i];
        track.syndrome[row] = syndrome[i];
        row++;
      }
    }
  }

  // Index of the first element that is not less than the value.
  function lower(array, value) {
    let low = 0, high = array.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (array[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  }

  parse(await decompress(element('data').textContent));
  element('data').textContent = '';
  let track = meta.tracks[0], marked = new Set(), plots = [], main = null;
  const hidden = new Set();

  const unit = seconds => {
    const s = Math.abs(seconds);
    const [factor, name] = s < 1e-6 ? [1e9, 'ns'] : s < 1e-3 ? [1e6, 'µs'] : s < 1 ? [1e3, 'ms'] : [1, 's'];
    return `${+(seconds * factor).toPrecision(6)} ${name}`;
  };

  function drawPackets(u) {
    const { left, top, width, height } = u.bbox, { ctx } = u, scale = devicePixelRatio;
    const x = u.scales.x, y = u.scales.y;
    if (!track || !(x.max > x.min) || !(y.max > y.min)) return;
    const from = Math.max(0, lower(track.time, x.min) - 1), to = Math.min(track.n, lower(track.time, x.max) + 1);
    const toX = width / (x.max - x.min), toY = height / (y.max - y.min);
    const size = (to - from > 20000 ? 2 : to - from > 2000 ? 3 : 6) * scale;
    const colors = KINDS.map((_, kind) => color(`--k${kind}`));
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    // One mark a cell, that of the kind with the highest priority: a million packets are as many marks as there are cells.
    const columns = Math.ceil(width / size) + 1, rows = Math.ceil(height / size) + 1;
    const cells = new Uint8Array(columns * rows);
    for (let i = from; i < to; i++) {
      const kind = track.kind[i];
      if (hidden.has(kind)) continue;
      const px = (track.time[i] - x.min) * toX, py = height - (track.psn[i] - y.min) * toY;
      if (kind === 2) {
        ctx.fillStyle = colors[2];
        ctx.globalAlpha = .45;
        const end = height - (track.expected[i] - y.min) * toY;
        ctx.fillRect(left + px - scale, top + py, 2 * scale, end - py);
        ctx.globalAlpha = 1;
      }
      const column = Math.round(px / size), row = Math.round(py / size);
      if (column < 0 || row < 0 || column >= columns || row >= rows) continue;
      const cell = row * columns + column;
      if (!cells[cell] || PRIORITY[cells[cell] - 1] < PRIORITY[kind]) cells[cell] = kind + 1;
    }
    for (let cell = 0; cell < cells.length; cell++) {
      if (!cells[cell]) continue;
      ctx.fillStyle = colors[cells[cell] - 1];
      const column = cell % columns, row = (cell - column) / columns;
      ctx.fillRect(left + (column - .5) * size, top + (row - .5) * size, size, size);
    }
    ctx.strokeStyle = color('--text');
    ctx.lineWidth = 2 * scale;
    for (const i of marked) {
      ctx.beginPath();
      ctx.arc(left + (track.time[i] - x.min) * toX, top + height - (track.psn[i] - y.min) * toY, 8 * scale, 0, 7);
      ctx.stroke();
    }
    ctx.restore();
  }

  // Throughput of both directions, packets in flight, CNPs and CE marks, in steps of the visible time.
  function bins(min, max) {
    const n = 300, step = (max - min) / n;
    const result = { time: [], rate: [[], []], flight: [], cnp: [], ce: [] };
    const sums = () => ({ bytes: [0, 0], flight: 0, cnp: 0, ce: 0 });
    let i = lower(track.time, min), flight = i ? track.flight[i - 1] : 0;
    for (let bin = 0; bin < n; bin++) {
      const end = bin === n - 1 ? Infinity : min + (bin + 1) * step, sum = sums();
      sum.flight = flight;
      for (; i < track.n && track.time[i] < end && track.time[i] <= max; i++) {
        sum.bytes[track.flags[i] & FROM_REQUESTER ? 0 : 1] += track.len[i];
        sum.flight = Math.max(sum.flight, flight = track.flight[i]);
        sum.cnp += track.kind[i] === 7;
        sum.ce += track.flags[i] & CE ? 1 : 0;
      }
      result.time.push(min + (bin + .5) * step);
      result.rate.forEach((rate, side) => rate.push(sum.bytes[side] * 8 / step / 1e9));
      result.flight.push(sum.flight);
      result.cnp.push(sum.cnp);
      result.ce.push(sum.ce);
    }
    return result;
  }

  function nearest(u, left, top) {
    const time = u.posToVal(left - 8, 'x'), end = u.posToVal(left + 8, 'x');
    let best = null, least = 12 * 12;
    for (let i = lower(track.time, time); i < track.n && track.time[i] <= end; i++) {
      if (hidden.has(track.kind[i])) continue;
      const dx = u.valToPos(track.time[i], 'x') - left, dy = u.valToPos(track.psn[i], 'y') - top, d = dx * dx + dy * dy;
      if (d < least) { least = d; best = i; }
    }
    return best;
  }

  function syndromeText(byte) {
    const low = byte & 31;
    switch (byte >> 5 & 3) {
      case 0: return low === 31 ? 'ACK' : `ACK, credit code ${low}`;
      case 1: return `RNR NAK, timer code ${low}`;
      case 3: return `NAK, ${NAKS[low] ?? `code ${low}`}`;
      default: return `syndrome ${byte}`;
    }
  }

  function describe(i) {
    const flags = track.flags[i], forward = flags & FROM_REQUESTER, base = track.bases[flags & REVERSE ? 1 : 0];
    const psn = base === null ? '' : `, 0x${((base + track.psn[i]) & 0xffffff).toString(16)}`;
    const lines = [
      `packet ${track.number[i]}, ${unit(track.time[i])}`,
      `${meta.opcodes[track.opcode[i]]}: ${KINDS[track.kind[i]]}`,
      forward ? `${track.requester} → ${track.responder}` : `${track.responder} → ${track.requester}`,
      `PSN ${track.psn[i] < 0 ? '' : '+'}${track.psn[i]}${psn}`,
      `${track.len[i]} bytes of payload, ${track.flight[i]} packets in flight`,
    ];
    if (track.kind[i] === 2) lines.push(`PSN +${track.expected[i]} to +${track.psn[i] - 1} missing before`);
    if (track.syndrome[i] !== 255) lines.push(syndromeText(track.syndrome[i]));
    if (flags & CE) lines.push('marked CE');
    return lines.join('\n');
  }

  function hover(u) {
    const tip = element('tip'), { left, top } = u.cursor;
    const i = left >= 0 && track ? nearest(u, left, top) : null;
    tip.hidden = i === null;
    if (i === null) return;
    tip.textContent = describe(i);
    const box = u.over.getBoundingClientRect();
    const x = Math.min(box.left + left + 14, innerWidth - tip.offsetWidth - 8), y = Math.min(box.top + top + 14, innerHeight - tip.offsetHeight - 8);
    tip.style.left = `${x}px`;
    tip.style.top = `${y}px`;
  }

  function options(title, height, series, more) {
    const axis = label => ({ stroke: color('--dim'), grid: { stroke: color('--grid') }, ticks: { stroke: color('--grid') }, label, labelSize: 18, size: 64 });
    const x = { ...axis(null), size: 36, values: (u, splits) => splits.map(unit) };
    return {
      width: element('plots').clientWidth, height, legend: { show: false },
      cursor: { sync: { key: 'time' }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: false } },
      axes: [x, axis(title)],
      series: [{}, ...series],
      ...more,
    };
  }

  function showRange(min, max) {
    const b = bins(min, max);
    const data = [null, [b.time, ...b.rate], [b.time, b.flight], [b.time, b.cnp, b.ce]];
    plots.forEach((plot, index) => {
      if (index) plot.setData(data[index], false);
      plot.setScale('x', { min, max });
    });
  }

  // Zooms to what was selected by dragging.
  function zoom(u) {
    const { left, width } = u.select;
    if (width < 2) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    showRange(u.posToVal(left, 'x'), u.posToVal(left + width, 'x'));
  }

  function show(next) {
    track = next;
    marked = new Set();
    plots.forEach(plot => plot.destroy());
    plots = [];
    main = null;
    if (!track || !track.n) return;
    element('tracks').value = meta.tracks.indexOf(track);
    const nothing = { paths: () => null, points: { show: false } };
    const line = (name, more) => ({ stroke: color(name), width: 1.5, points: { show: false }, ...more });
    const zoomed = { hooks: { setSelect: [zoom] } };
    const first = track.time[0], last = Math.max(track.time[track.n - 1], first + 1e-6);
    const empty = n => [[first, last], ...Array.from({ length: n }, () => [null, null])];
    // A double click resets each plot to its data; those below have only the visible part.
    const all = { scales: { x: { time: false, range: (u, min, max) => min === null ? [first, last] : [min, max] } } };
    main = new uPlot(options('PSN, relative', 420, [nothing], { ...zoomed, ...all, hooks: { ...zoomed.hooks, draw: [drawPackets], setCursor: [hover] } }), [track.time, track.psn], element('psn'));
    const fill = { fill: color('--k7', 20) };
    plots = [
      main,
      new uPlot(options('Gb/s', 130, [line('--k0'), line('--k6')], { ...zoomed, ...all }), empty(2), element('rate')),
      new uPlot(options('in flight', 130, [line('--k3', { paths: uPlot.paths.stepped({ align: 0 }) })], { ...zoomed, ...all }), empty(1), element('window')),
      new uPlot(options('CNP, CE', 110, [line('--k7', fill), line('--k2')], { ...zoomed, ...all }), empty(2), element('marks')),
    ];
    for (const plot of plots) plot.over.addEventListener('dblclick', event => { event.stopImmediatePropagation(); fit(); }, true);
    fit();
  }

  function fit() {
    const first = track.time[0], last = track.time[track.n - 1], margin = (last - first || 1e-6) / 50;
    showRange(first - margin, last + margin);
  }

  // Index of a packet in the track; -1 if it is not there.
  function indexOf(number) {
    const i = lower(track.number, number);
    return i < track.n && track.number[i] === number ? i : -1;
  }

  function go(finding, button) {
    document.querySelectorAll('#findings [aria-current]').forEach(other => other.removeAttribute('aria-current'));
    button?.setAttribute('aria-current', 'true');
    const has = (t, p) => t.file === p.file && t.n && lower(t.number, p.packet) < t.n && t.number[lower(t.number, p.packet)] === p.packet;
    const found = finding.packets.map(p => meta.tracks.find(t => has(t, p))).find(t => t);
    if (!found) return;
    show(found);
    const rows = finding.packets.filter(p => p.file === found.file).map(p => indexOf(p.packet)).filter(i => i >= 0);
    marked = new Set(rows);
    // All packets of the finding, with about as much time around them, and at least 20 packets.
    const first = Math.min(...rows), last = Math.max(...rows);
    const from = track.time[Math.max(0, first - 10)], to = track.time[Math.min(track.n - 1, last + 10)];
    const margin = Math.max((track.time[last] - track.time[first]) / 4, (to - from) / 20, 1e-7);
    showRange(Math.min(from, track.time[first] - margin), Math.max(to, track.time[last] + margin));
  }

  function fillIn() {
    meta.captures.forEach(text => element('captures').append(Object.assign(document.createElement('li'), { textContent: text })));
    meta.findings.forEach(finding => {
      const item = document.createElement('li'), button = document.createElement('button');
      item.className = finding.severity;
      button.type = 'button';
      const part = (tag, text, name) => button.append(Object.assign(document.createElement(tag), { textContent: text, className: name ?? '' }));
      part('strong', `${finding.severity}: ${finding.subject}`);
      part('div', finding.text);
      finding.comments.forEach(comment => part('div', `comment on ${comment}`, 'remedy'));
      if (finding.remedy) part('div', `remedy: ${finding.remedy}`, 'remedy');
      button.addEventListener('click', () => go(finding, button));
      item.append(button);
      element('findings').append(item);
    });
    if (!meta.findings.length) element('findings').textContent = 'nothing wrong found';
    meta.tracks.forEach((t, index) => {
      const text = `${t.service}  ${t.requester} ⇄ ${t.responder}  ${t.n} packets` + (meta.captures.length > 1 ? `  capture ${t.file + 1}` : '');
      element('tracks').append(new Option(text, index));
    });
    element('tracks').addEventListener('change', event => show(meta.tracks[event.target.value]));
    KINDS.forEach((name, kind) => {
      const label = document.createElement('label'), box = document.createElement('input'), dot = document.createElement('i');
      Object.assign(box, { type: 'checkbox', checked: true });
      dot.style.background = `var(--k${kind})`;
      box.addEventListener('change', () => { if (box.checked) hidden.delete(kind); else hidden.add(kind); main?.redraw(false); });
      label.append(box, ' ', dot, name);
      element('legend').append(label);
    });
    if (meta.left_out) element('left-out').textContent = `${meta.left_out} more packets are not shown: choose a queue pair with --qp.`;
  }

  element('theme').addEventListener('click', () => {
    const root = document.documentElement.style, dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const now = root.colorScheme || (dark ? 'dark' : 'light');
    root.colorScheme = now === 'dark' ? 'light' : 'dark';
    const { min, max } = main?.scales.x ?? {}, rows = marked;
    show(track);
    marked = rows;
    if (main) showRange(min, max);
  });
  addEventListener('resize', () => plots.forEach(plot => plot.setSize({ width: element('plots').clientWidth, height: plot.height })));

  fillIn();
  show(meta.tracks.find(t => t.n));
  if (meta.findings.length) document.querySelector('#findings button').click();
  // For tests: the place of a packet on the screen, and the visible range.
  window.urxe = {
    place(number) {
      const i = indexOf(number), box = main.over.getBoundingClientRect();
      return { x: box.left + main.valToPos(track.time[i], 'x'), y: box.top + main.valToPos(track.psn[i], 'y') };
    },
    range: () => [main.scales.x.min, main.scales.x.max],
    packets: () => track.n,
    fit,
  };
  document.documentElement.dataset.ready = 'true';
})();
