package store

import (
	"encoding/binary"
	"hash/crc32"

	"samovar/internal/fault"
	"samovar/internal/volume"
)

// A frame is the form of every small file:
//
//	 0  magic, 8 bytes ──────┐ these 16 bytes keep their
//	 8  version, u32         │ place and meaning in every
//	12  crc32c of 0..11, u32 ┘ version, also in future ones
//	16  length of the body, u64
//	24  pool id, 16 bytes
//	40  volume id, 16 bytes; zero in the pool's own files
//	56  crc32c of 16..55 and the body, u32
//	60  zero, u32
//	64  body
//
// Numbers are little-endian. The file ends with the body. Because version has a checksum of its own, a newer
// file is told from a damaged one without knowing how the newer version looks.
const frameHeader = 64

// Magics, one for each kind of file.
const (
	magicIdentity = "SMVRPOOL"
	magicState    = "SMVRSTAT"
	magicLog      = "SMVRDLOG"
	magicRecord   = "SMVRCHNG"
	magicMissing  = "SMVRMISS"
)

// Versions of the files that this binary writes, and the highest that it reads.
const (
	identityVersion = 1 // 1: first
	stateVersion    = 1 // 1: first
	logVersion      = 1 // 1: first
	recordVersion   = 1 // 1: first
	missingVersion  = 1 // 1: first
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameKind is what a frame must be, and whose.
type frameKind struct {
	magic   string
	version uint32
	pool    volume.PoolID
	volume  volume.ID
}

// encodeFrame puts body into a frame.
func encodeFrame(k frameKind, body []byte) []byte {
	b := make([]byte, frameHeader, frameHeader+len(body))
	copy(b, k.magic)
	binary.LittleEndian.PutUint32(b[8:], k.version)
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[:12], castagnoli))
	binary.LittleEndian.PutUint64(b[16:], uint64(len(body)))
	copy(b[24:], k.pool[:])
	copy(b[40:], k.volume[:])
	sum := crc32.Update(crc32.Checksum(b[16:56], castagnoli), castagnoli, body)
	binary.LittleEndian.PutUint32(b[56:], sum)
	return append(b, body...)
}

// parseFrame checks a frame from its start to its end and returns the body, which shares memory with b. The
// zero pool accepts any: the caller compares.
func parseFrame(k frameKind, b []byte) ([]byte, error) {
	const op = "check file"
	bad := func(text string) error { return fault.New(fault.Corrupt, op, text) }
	if len(b) < 16 {
		return nil, bad("it is cut off")
	}
	if string(b[:8]) != k.magic {
		return nil, bad("it is not a file of this kind")
	}
	if binary.LittleEndian.Uint32(b[12:]) != crc32.Checksum(b[:12], castagnoli) {
		return nil, bad("the checksum of its header is wrong")
	}
	switch v := binary.LittleEndian.Uint32(b[8:]); {
	case v == 0:
		return nil, bad("it has no version")
	case v > k.version:
		return nil, fault.New(fault.Newer, op, "a newer version of samovar wrote it; start that version or a later one")
	}
	if len(b) < frameHeader {
		return nil, bad("it is cut off")
	}
	body := b[frameHeader:]
	if n := binary.LittleEndian.Uint64(b[16:]); n != uint64(len(body)) {
		return nil, bad("its length is wrong")
	}
	sum := crc32.Update(crc32.Checksum(b[16:56], castagnoli), castagnoli, body)
	if binary.LittleEndian.Uint32(b[56:]) != sum || binary.LittleEndian.Uint32(b[60:]) != 0 {
		return nil, bad("its checksum is wrong")
	}
	if pool := volume.PoolID(b[24:40]); pool != k.pool && k.pool != (volume.PoolID{}) {
		return nil, fault.New(fault.Foreign, op, "it belongs to pool "+pool.String())
	}
	if id := volume.ID(b[40:56]); id != k.volume {
		return nil, fault.New(fault.Foreign, op, "it belongs to volume "+id.String())
	}
	return body, nil
}
