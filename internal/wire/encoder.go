package wire

import (
	"fmt"
	"hash/crc32"
	"io"
	"net"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Encoder gathers the frames of many messages of one session for one vectored write. Payloads are not copied.
// It has one owner at a time; its memory is used again for the next batch.
//
// A writer that is not a socket of the net package gets one Write for each piece: put a buffer under it, or
// write the pieces of Batch as suits it.
type Encoder struct {
	session Session
	meta    []byte // headers, bodies and tables of the batch, one after another
	cuts    []cut
	pieces  net.Buffers     // the memory behind out
	out     net.Buffers     // what Batch gave out; consumed by the write
	held    []*block.Buffer // one reference each, released by Done
	frames  int
	size    int // bytes of payload
}

// cut is a payload piece that stands before meta[at:].
type cut struct {
	at   int
	data []byte
}

// keepMeta is how much memory for headers and bodies is kept from batch to batch.
const keepMeta = 1 << 20

// NewEncoder makes an encoder for a bound session.
func NewEncoder(s Session) *Encoder { return &Encoder{session: s} }

// Len is the number of frames in the batch, Size their length in bytes.
func (e *Encoder) Len() int  { return e.frames }
func (e *Encoder) Size() int { return e.size + len(e.meta) }

// Append adds one message and takes over the sender's reference of its payload, which Done releases. After an
// error the batch is as before and the payload still the sender's: fault.Internal for a message that this end
// of the session must not send, fault.Invalid for one that cannot be put into a frame.
func (e *Encoder) Append(m *replication.Message) error {
	r, err := e.check(m)
	if err != nil {
		return err
	}
	meta, cuts, held := len(e.meta), len(e.cuts), len(e.held)
	h := header{
		version: Version, kind: m.Kind, status: uint8(m.Status),
		session: e.session.Number, epoch: uint64(e.session.Epoch),
		id: m.ID, completed: m.Completed, flushed: m.Flushed,
		offset: m.Range.Offset, length: m.Range.Length,
		stamp: uint64(m.Stamp), credit: m.Credit,
	}
	for _, f := range [...]struct {
		on  bool
		bit uint16
	}{{m.FUA, flagFUA}, {m.Punch, flagPunch}, {m.Full, flagFull}} {
		if f.on {
			h.flags |= f.bit
		}
	}
	e.meta = append(e.meta, make([]byte, headerSize)...)
	wrong := e.appendRest(&h, r, m)
	if wrong != "" {
		clear(e.cuts[cuts:])
		clear(e.held[held:])
		e.meta, e.cuts, e.held = e.meta[:meta], e.cuts[:cuts], e.held[:held]
		return e.session.fault(fault.Invalid, "send "+r.name, "%s", wrong)
	}
	h.put(e.meta[meta:])
	e.frames++
	e.size += int(h.payload) - (len(e.meta) - meta - headerSize - int(h.body))
	return nil
}

// check refuses what would be a mistake of this end.
func (e *Encoder) check(m *replication.Message) (*rule, error) {
	s := &e.session
	r := ruleOf(m.Kind)
	refuse := func(format string, args ...any) (*rule, error) {
		return nil, s.fault(fault.Internal, "send", format, args...)
	}
	switch {
	case r == nil:
		return refuse("no message has kind %d", m.Kind)
	case !s.bound():
		return refuse("%s before the session is bound", r.name)
	case r.from != s.Local:
		return refuse("%s from this end, which is the %v", r.name, s.Local)
	case (m.Volume != s.Volume || m.Pool != s.Pool) && m.Kind != replication.Refuse:
		return refuse("%s for volume %v on pool %v, the session is for %v on %v", r.name, m.Volume, m.Pool, s.Volume, s.Pool)
	case r.opens && m.Fence.Epoch != s.Epoch:
		return refuse("%s of epoch %d in a session of epoch %d", r.name, m.Fence.Epoch, s.Epoch)
	case len(m.Forward) != 0:
		return refuse("%s to be forwarded to %d replicas: version %d forwards to none", r.name, len(m.Forward), Version)
	}
	if wrong := r.lacks(m); wrong != "" {
		return refuse("%s with %s", r.name, wrong)
	}
	if wrong := r.validRange(m.Range); wrong != "" {
		return refuse("%s", wrong)
	}
	return r, nil
}

// appendRest adds body and payload and fills in what the header says of them.
func (e *Encoder) appendRest(h *header, r *rule, m *replication.Message) (wrong string) {
	start := len(e.meta)
	if e.meta, wrong = appendBody(e.meta, m, r.names); wrong != "" {
		return wrong
	}
	if body := e.meta[start:]; len(body) > 0 {
		if len(body) > MaxBody {
			return fmt.Sprintf("a body of %d bytes, the limit is %d", len(body), MaxBody)
		}
		h.body, h.bodySum = uint32(len(body)), checksum(body)
	}
	var plain *block.Buffer
	var table *Segments
	switch p := m.Payload.(type) {
	case nil:
	case *block.Buffer:
		plain = p
	case *Segments:
		table = p
	default:
		return fmt.Sprintf("a payload of type %T", p)
	}
	if table == nil && plain == nil && r.payload != wholeRange {
		return ""
	}
	if r.payload == segmentPayload && plain != nil {
		one := Segments{List: []Segment{{Range: m.Range, Data: plain}}}
		return e.appendSegments(h, &one, m.Range)
	}
	switch {
	case r.payload == noPayload:
		return "no payload belongs to it"
	case table == nil:
		return e.appendPlain(h, r, plain, m.Range)
	case r.payload == wholeRange:
		return "its payload must be whole"
	}
	return e.appendSegments(h, table, m.Range)
}

func (e *Encoder) appendPlain(h *header, r *rule, b *block.Buffer, x volume.Range) string {
	if b == nil || b.Len() == 0 || b.Len() > volume.MaxRequest {
		return "no payload, or too long a one"
	}
	if uint64(b.Len()) != x.Length && (r.payload == wholeRange || x.Length != 0) {
		return fmt.Sprintf("a payload of %d bytes for a range of %d", b.Len(), x.Length)
	}
	h.payload, h.payloadSum = uint32(b.Len()), checksum(b.Bytes())
	e.cut(b)
	return ""
}

func (e *Encoder) cut(b *block.Buffer) {
	e.cuts = append(e.cuts, cut{at: len(e.meta), data: b.Bytes()})
	e.held = append(e.held, b)
}

func (e *Encoder) appendSegments(h *header, s *Segments, x volume.Range) (wrong string) {
	start, data := len(e.meta), uint64(0)
	if e.meta, data, wrong = s.appendTable(e.meta); wrong != "" {
		return wrong
	}
	if x.Length != 0 && s.Range() != x {
		return fmt.Sprintf("segments of %v for the range %v", s.Range(), x)
	}
	table := e.meta[start:]
	h.flags |= flagTable
	h.payload, h.payloadSum = uint32(len(table))+uint32(data), checksum(table)
	for i := range s.List {
		if b := s.List[i].Data; b != nil {
			h.payloadSum = crc32.Update(h.payloadSum, castagnoli, b.Bytes())
			e.cut(b)
		}
	}
	return ""
}

// Batch gives the batch as pieces for one WriteTo, which consumes them. They stay valid until Done.
func (e *Encoder) Batch() *net.Buffers {
	e.pieces = e.pieces[:0]
	from := 0
	for _, c := range e.cuts {
		if c.at > from {
			e.pieces = append(e.pieces, e.meta[from:c.at])
			from = c.at
		}
		e.pieces = append(e.pieces, c.data)
	}
	if from < len(e.meta) {
		e.pieces = append(e.pieces, e.meta[from:])
	}
	e.out = e.pieces
	return &e.out
}

// Done releases the payloads of the batch, written or not, and empties it.
func (e *Encoder) Done() {
	for _, b := range e.held {
		b.Release()
	}
	clear(e.held)
	clear(e.cuts)
	clear(e.pieces)
	e.held, e.cuts, e.pieces, e.out = e.held[:0], e.cuts[:0], e.pieces[:0], nil
	if e.meta = e.meta[:0]; cap(e.meta) > keepMeta {
		e.meta = nil
	}
	e.frames, e.size = 0, 0
}

// Flush writes the batch and ends it. An error ends the session: part of a frame may be on its way.
func (e *Encoder) Flush(w io.Writer) error {
	defer e.Done()
	if e.frames == 0 {
		return nil
	}
	if _, err := e.Batch().WriteTo(w); err != nil {
		return fault.Wrap(fault.Unavailable, e.session.op("send"), err)
	}
	return nil
}
