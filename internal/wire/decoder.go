package wire

import (
	"fmt"
	"hash/crc32"
	"io"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Decoder reads the frames of one session. It has one owner, who alone reads the stream.
type Decoder struct {
	session  Session
	stream   io.Reader
	pool     *block.Pool
	buf      []byte // read and not yet used: buf[from:to]
	from, to int
	scratch  []byte // a body or table that the buffer cannot hold
	msgs     []replication.Message
	err      error // what Next returns from now on
}

const (
	bufferSize = 256 << 10
	// gathered is the longest frame that is waited for in the buffer, so that those behind it come with the
	// same read. The payload of a longer one is read to where it stays.
	gathered = 64 << 10
	// firstStep and keepScratch: long bodies are read in steps that double, so that a lie costs little.
	firstStep   = 64 << 10
	keepScratch = 1 << 20
)

// NewDecoder reads a session from stream, payloads into buffers of pool. At the acceptor the session is not
// bound yet: the first frame does that.
func NewDecoder(stream io.Reader, pool *block.Pool, s Session) *Decoder {
	return &Decoder{session: s, stream: stream, pool: pool, buf: make([]byte, bufferSize)}
}

// Session is what is agreed so far. At the acceptor, after the first Next, it serves to make the Encoder.
func (d *Decoder) Session() Session { return d.session }

// Next waits for a message and returns it with all that are complete without another read. The slice is used
// again by the next call; payloads belong to the caller, one reference each: a *block.Buffer, in a Fetched
// *Segments.
//
// Errors come after the messages before them, and again at every later call: io.EOF for a stream that ends
// between frames; fault.Unavailable around the cause, io.ErrUnexpectedEOF if it ends within one; fault.Corrupt for
// a bad frame; fault.Foreign for one of another session, epoch, volume or pool; fault.Newer for one that asks for
// more than version 1. Each ends the session.
func (d *Decoder) Next() ([]replication.Message, error) {
	clear(d.msgs)
	d.msgs = d.msgs[:0]
	for d.err == nil {
		waits, err := d.frame(len(d.msgs) == 0)
		if waits {
			return d.msgs, nil
		}
		d.err = err
	}
	if len(d.msgs) > 0 {
		return d.msgs, nil
	}
	d.buf, d.scratch = nil, nil
	return nil, d.err
}

// frame adds one message. Unless it may wait, it does so only if the whole frame is in the buffer.
func (d *Decoder) frame(mayWait bool) (waits bool, err error) {
	if d.to-d.from < headerSize {
		if !mayWait {
			return true, nil
		}
		if err := d.fill(headerSize, true); err != nil {
			return false, err
		}
	}
	var h header
	if wrong := h.parse(d.buf[d.from:d.to]); wrong != "" {
		return false, d.session.fault(fault.Corrupt, "read frame", "%s", wrong)
	}
	r, err := d.accept(&h)
	if err != nil {
		return false, err
	}
	if total := headerSize + int(h.body) + int(h.payload); d.to-d.from < total {
		if !mayWait {
			return true, nil
		}
		if total <= gathered {
			if err := d.fill(total, true); err != nil {
				return false, err
			}
		}
	}
	d.from += headerSize
	d.msgs = append(d.msgs, replication.Message{})
	m := &d.msgs[len(d.msgs)-1]
	h.message(m)
	if err = d.body(&h, r, m); err == nil {
		err = d.payload(&h, m)
	}
	if err != nil {
		d.msgs[len(d.msgs)-1] = replication.Message{}
		d.msgs = d.msgs[:len(d.msgs)-1]
	}
	return false, err
}

// message gives the header's part of a message.
func (h *header) message(m *replication.Message) {
	m.Kind, m.Status = h.kind, fault.Kind(h.status)
	m.FUA, m.Punch, m.Full = h.flags&flagFUA != 0, h.flags&flagPunch != 0, h.flags&flagFull != 0
	m.ID, m.Completed, m.Flushed = h.id, h.completed, h.flushed
	m.Range = volume.Range{Offset: h.offset, Length: h.length}
	m.Stamp = durationOf(h.stamp)
	m.Credit = h.credit
}

// accept compares a header with the session and the rules of its kind.
func (d *Decoder) accept(h *header) (*rule, error) {
	s := &d.session
	refuse := func(kind fault.Kind, format string, args ...any) (*rule, error) {
		return nil, s.fault(kind, "read frame", format, args...)
	}
	r := ruleOf(h.kind)
	switch {
	case h.version != s.Version:
		return refuse(fault.Corrupt, "a frame of version %d, agreed was %d", h.version, s.Version)
	case h.session != s.Number:
		return refuse(fault.Foreign, "a frame of session %016x", h.session)
	case r == nil:
		return refuse(fault.Corrupt, "unknown kind %d", h.kind)
	case r.from != s.Remote:
		return refuse(fault.Corrupt, "%s from the peer, which is the %v", r.name, s.Remote)
	case !s.bound() && !r.opens:
		return refuse(fault.Corrupt, "%s before a frame that names volume, pool and fence", r.name)
	case s.bound() && h.epoch != uint64(s.Epoch):
		return refuse(fault.Foreign, "%s of epoch %d, the session has epoch %d", r.name, h.epoch, s.Epoch)
	case h.forward != 0:
		return refuse(fault.Newer, "%s asks to be forwarded to %d replicas, version %d forwards to none", r.name,
			h.forward, Version)
	}
	if wrong := r.validRange(volume.Range{Offset: h.offset, Length: h.length}); wrong != "" {
		return refuse(fault.Corrupt, "%s", wrong)
	}
	if wrong := h.payloadFits(r); wrong != "" {
		return refuse(fault.Corrupt, "%s has %s", r.name, wrong)
	}
	return r, nil
}

// payloadFits tells what is wrong with the announced payload, or "".
func (h *header) payloadFits(r *rule) string {
	table, length := h.flags&flagTable != 0, uint64(h.payload)
	switch {
	case table && r.payload != someBytes && r.payload != segmentPayload:
		return "a table of segments"
	case table && length < tableHead+tableEntry:
		return fmt.Sprintf("a payload of %d bytes, less than a table", length)
	case table:
	case r.payload == noPayload && length != 0, r.payload == segmentPayload && length != 0:
		return fmt.Sprintf("a payload of %d bytes", length)
	case r.payload == wholeRange && (length != h.length || length == 0),
		length != 0 && h.length != 0 && length != h.length, length > volume.MaxRequest:
		return fmt.Sprintf("a payload of %d bytes for a range of %d", length, h.length)
	}
	if length == 0 && h.payloadSum != 0 {
		return "a checksum without a payload"
	}
	return ""
}

// body reads the body and completes what the message says of the session.
func (d *Decoder) body(h *header, r *rule, m *replication.Message) error {
	s := &d.session
	refuse := func(kind fault.Kind, format string, args ...any) error {
		return s.fault(kind, "read "+r.name, format, args...)
	}
	var seen fieldSet
	if h.body > 0 {
		b, err := d.take(int(h.body))
		if err != nil {
			return err
		}
		if got := checksum(b); got != h.bodySum {
			return refuse(fault.Corrupt, "the body's checksum is %08x, its bytes give %08x", h.bodySum, got)
		}
		var wrong string
		if seen, wrong = parseBody(b, m, s); wrong != "" {
			return refuse(fault.Corrupt, "%s", wrong)
		}
		if cap(d.scratch) > keepScratch {
			d.scratch = nil
		}
	} else if h.bodySum != 0 {
		return refuse(fault.Corrupt, "a checksum without a body")
	}
	if missing := r.needs &^ seen; missing != 0 {
		return refuse(fault.Corrupt, "fields %#x are missing", uint32(missing))
	}
	if !r.names {
		if seen&identity != 0 {
			return refuse(fault.Corrupt, "it names a volume or pool of its own")
		}
		m.Volume, m.Pool = s.Volume, s.Pool
		return nil
	}
	if r.opens && uint64(m.Fence.Epoch) != h.epoch {
		return refuse(fault.Foreign, "its fence has epoch %d, its header epoch %d", m.Fence.Epoch, h.epoch)
	}
	if !s.bound() {
		if m.Volume == (volume.ID{}) || m.Pool == (volume.PoolID{}) {
			return refuse(fault.Corrupt, "it names no volume or no pool")
		}
		s.Volume, s.Pool, s.Epoch = m.Volume, m.Pool, m.Fence.Epoch
	}
	if (m.Volume != s.Volume || m.Pool != s.Pool) && m.Kind != replication.Refuse {
		return refuse(fault.Foreign, "it is for volume %v on pool %v, the session for %v on %v", m.Volume, m.Pool,
			s.Volume, s.Pool)
	}
	return nil
}

// payload reads the payload into m.
func (d *Decoder) payload(h *header, m *replication.Message) error {
	if h.payload == 0 {
		return nil
	}
	if h.flags&flagTable != 0 {
		return d.segments(h, m)
	}
	b := d.pool.Get(int(h.payload))
	err := d.read(b.Bytes())
	if err == nil {
		err = d.sum(h, checksum(b.Bytes()))
	}
	if err != nil {
		b.Release()
		return err
	}
	m.Payload = b
	return nil
}

func (d *Decoder) sum(h *header, got uint32) error {
	if got != h.payloadSum {
		return d.session.fault(fault.Corrupt, "read "+rules[h.kind].name,
			"the payload's checksum is %08x, its bytes give %08x", h.payloadSum, got)
	}
	return nil
}

// segments reads a payload that starts with a table. For a read's answer the pieces come into one buffer.
func (d *Decoder) segments(h *header, m *replication.Message) error {
	bad := func(format string, args ...any) error {
		return d.session.fault(fault.Corrupt, "read "+rules[h.kind].name, format, args...)
	}
	var head [tableHead]byte
	if err := d.read(head[:]); err != nil {
		return err
	}
	sum := checksum(head[:])
	count := uint64(le32(head[:]))
	left := uint64(h.payload) - tableHead
	if count == 0 || count > MaxSegments || count*tableEntry > left || le32(head[4:]) != 0 {
		return bad("a table of %d segments in %d bytes", count, h.payload)
	}
	table, err := d.take(int(count * tableEntry))
	if err != nil {
		return err
	}
	sum = crc32.Update(sum, castagnoli, table)
	s := &Segments{List: make([]Segment, count)}
	data := make([]bool, count)
	total, wrong := s.parseTable(table, func(i int) { data[i] = true })
	switch {
	case wrong != "":
		return bad("%s", wrong)
	case total != left-count*tableEntry:
		return bad("segments of %d bytes in a payload that has %d", total, left-count*tableEntry)
	case h.length != 0 && s.Range() != m.Range:
		return bad("segments of %v for the range %v", s.Range(), m.Range)
	}
	if rules[h.kind].payload == someBytes {
		return d.flat(h, m, s, data, sum)
	}
	for i := range s.List {
		if !data[i] {
			continue
		}
		b := d.pool.Get(int(s.List[i].Range.Length))
		s.List[i].Data = b
		if err := d.read(b.Bytes()); err != nil {
			s.Release()
			return err
		}
		sum = crc32.Update(sum, castagnoli, b.Bytes())
	}
	if err := d.sum(h, sum); err != nil {
		s.Release()
		return err
	}
	m.Payload = s
	return nil
}

// flat reads the data of s into one buffer, zeroes where the holes are.
func (d *Decoder) flat(h *header, m *replication.Message, s *Segments, data []bool, sum uint32) error {
	b := d.pool.Get(int(s.Range().Length))
	rest := b.Bytes()
	for i := range s.List {
		piece := rest[:s.List[i].Range.Length]
		rest = rest[len(piece):]
		if !data[i] {
			clear(piece)
			continue
		}
		if err := d.read(piece); err != nil {
			b.Release()
			return err
		}
		sum = crc32.Update(sum, castagnoli, piece)
	}
	if err := d.sum(h, sum); err != nil {
		b.Release()
		return err
	}
	m.Payload = b
	return nil
}
