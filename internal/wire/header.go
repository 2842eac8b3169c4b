package wire

import (
	"encoding/binary"
	"fmt"

	"samovar/internal/replication"
)

// Offsets are in the package comment and docs/protocol/peer.md.
const (
	headerSize  = 104
	headerMagic = 'S' | 'M'<<8 | 'V'<<16 | 'F'<<24
)

// Flags. Unknown ones are refused: what may be skipped is a field.
const (
	flagFUA   = 1 << 0
	flagPunch = 1 << 1
	flagFull  = 1 << 2
	flagTable = 1 << 3 // the payload starts with a table of segments

	knownFlags = flagFUA | flagPunch | flagFull | flagTable
)

// header is the fixed part of a frame.
type header struct {
	version       uint8
	kind          replication.Kind
	status        uint8
	flags         uint16
	forward       uint16
	body, payload uint32 // lengths
	payloadSum    uint32
	bodySum       uint32

	session, epoch         uint64
	id, completed, flushed uint64
	offset, length         uint64
	stamp, credit          uint64
}

// put writes the header with its sum to b, which has headerSize bytes.
func (h *header) put(b []byte) {
	le := binary.LittleEndian
	b = b[:headerSize]
	le.PutUint32(b[0:], headerMagic)
	b[4], b[5], b[6], b[7] = h.version, byte(h.kind), h.status, headerSize
	le.PutUint16(b[8:], h.flags)
	le.PutUint16(b[10:], h.forward)
	le.PutUint32(b[12:], h.body)
	le.PutUint32(b[16:], h.payload)
	le.PutUint32(b[20:], h.payloadSum)
	le.PutUint64(b[24:], h.session)
	le.PutUint64(b[32:], h.epoch)
	le.PutUint64(b[40:], h.id)
	le.PutUint64(b[48:], h.completed)
	le.PutUint64(b[56:], h.flushed)
	le.PutUint64(b[64:], h.offset)
	le.PutUint64(b[72:], h.length)
	le.PutUint64(b[80:], h.stamp)
	le.PutUint64(b[88:], h.credit)
	le.PutUint32(b[96:], h.bodySum)
	le.PutUint32(b[100:], checksum(b[:100]))
}

// parse reads the header from b, which has headerSize bytes, and tells in words what is wrong with it, or "".
// It checks the form only; the session is the decoder's business.
func (h *header) parse(b []byte) string {
	le := binary.LittleEndian
	b = b[:headerSize]
	if magic := le.Uint32(b); magic != headerMagic {
		return fmt.Sprintf("a frame starts with %08x instead of %08x", magic, uint32(headerMagic))
	}
	if got, want := checksum(b[:100]), le.Uint32(b[100:]); got != want {
		return fmt.Sprintf("the header's checksum is %08x, its bytes give %08x", want, got)
	}
	*h = header{
		version: b[4], kind: replication.Kind(b[5]), status: b[6],
		flags: le.Uint16(b[8:]), forward: le.Uint16(b[10:]),
		body: le.Uint32(b[12:]), payload: le.Uint32(b[16:]),
		payloadSum: le.Uint32(b[20:]), bodySum: le.Uint32(b[96:]),
		session: le.Uint64(b[24:]), epoch: le.Uint64(b[32:]),
		id: le.Uint64(b[40:]), completed: le.Uint64(b[48:]), flushed: le.Uint64(b[56:]),
		offset: le.Uint64(b[64:]), length: le.Uint64(b[72:]),
		stamp: le.Uint64(b[80:]), credit: le.Uint64(b[88:]),
	}
	switch {
	case b[7] != headerSize:
		return fmt.Sprintf("the header claims %d bytes, version %d has %d", b[7], Version, headerSize)
	case h.flags&^knownFlags != 0:
		return fmt.Sprintf("unknown flags %#x", h.flags&^knownFlags)
	case h.body > MaxBody:
		return fmt.Sprintf("a body of %d bytes, the limit is %d", h.body, MaxBody)
	case h.payload > maxPayload:
		return fmt.Sprintf("a payload of %d bytes, the limit is %d", h.payload, maxPayload)
	}
	return ""
}
