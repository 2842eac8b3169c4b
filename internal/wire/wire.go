// Package wire carries replication.Message over an ordered byte stream between the node of an engine, or of a
// replica that copies, and the node of a replica. It knows bytes and nothing else: no connections are opened
// here, no deadlines set, no goroutines started, and what a message means is the business of the state machines.
//
// A connection carries one session. First each side sends a preamble, then frames follow, without padding:
//
//	dialer (engine or copier)                 acceptor (node of a replica)
//	   Preamble  ------------------------->
//	             <-------------------------   Preamble
//	   Hello or Fetch  ------------------->   binds volume, pool and epoch to the session
//	             <-------------------------   Welcome, Ack, Fetched, ...
//
// A frame. All numbers are little-endian, every sum is crc32c. The header's sum covers the lengths, so nothing
// is waited for or allocated on the word of a damaged length:
//
//	  0  magic "SMVF"    4  version   5 kind   6 status   7 header length in bytes
//	  8  flags          10  forward count     12  body length
//	 16  payload length 20  sum of the payload
//	 24  session        32  epoch
//	 40  id             48  completed         56  flushed
//	 64  offset         72  length
//	 80  stamp          88  credit
//	 96  sum of the body                     100  sum of bytes 0 to 99
//	104  body: fields in ascending order of tag: | tag 2 | field flags 2 | length 4 | value |
//	     payload: bytes of the range; or, with flag TABLE:
//	       | count 4 | zero 4 | count x ( offset 8, length 8, kind 4, zero 4 ) | bytes of the data segments |
//
// Session, epoch and sender of every frame are compared with what the connection agreed on; volume and pool
// travel once each way and are compared there. The format of every field and its history: docs/protocol/peer.md.
package wire

import (
	"hash/crc32"

	"samovar/internal/volume"
)

// Version is the only version of the protocol that this code speaks.
const Version = 1

// Limits of a frame. A frame beyond them is refused before any memory is taken for it.
const (
	MaxSegments = 16384    // of one Fetched
	MaxBody     = 64 << 20 // bytes

	maxPayload       = volume.MaxRequest + tableHead + MaxSegments*tableEntry
	maxConfiguration = 4 << 20 // bytes of JSON; JSON grows when it is parsed
	maxText          = 4 << 10
)

// castagnoli is constant.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Update(0, castagnoli, b) }
