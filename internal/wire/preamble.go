package wire

import (
	"encoding/binary"
	"fmt"
	"io"

	"samovar/internal/fault"
)

// Purpose says what a node came for. Numbers go on the wire and are never reused.
type Purpose uint8

// The purposes.
const (
	Engine  Purpose = 1 // dials: the engine of a volume
	Copier  Purpose = 2 // dials: a replica that copies from another
	Replica Purpose = 3 // accepts: the node of the replica
)

// String names the purpose.
func (p Purpose) String() string {
	switch p {
	case Engine:
		return "engine"
	case Copier:
		return "copier"
	case Replica:
		return "replica"
	}
	return fmt.Sprintf("purpose %d", uint8(p))
}

// PreambleSize is the length of a preamble in bytes, the same in every version for ever.
const PreambleSize = 64

const preambleMagic = "SAMOVAR\n"

// Preamble is what each side sends first:
//
//	0 magic "SAMOVAR\n"   8 lowest version 2   10 highest version 2   12 purpose 1   13 zero 3
//	16 cluster 16   32 connection 16   48 reserved 12: zero, not looked at   60 crc32c of bytes 0 to 59
type Preamble struct {
	Lowest, Highest uint16 // versions spoken
	Purpose         Purpose
	Cluster         [16]byte
	Connection      [16]byte // random, new for every connection
}

// NewPreamble describes this code to a peer. random gives the connection id.
func NewPreamble(cluster [16]byte, purpose Purpose, random io.Reader) (Preamble, error) {
	p := Preamble{Lowest: Version, Highest: Version, Purpose: purpose, Cluster: cluster}
	if _, err := io.ReadFull(random, p.Connection[:]); err != nil {
		return p, fault.Wrap(fault.Internal, "make a connection id", err)
	}
	return p, nil
}

// Append adds the wire form.
func (p Preamble) Append(dst []byte) []byte {
	var b [PreambleSize]byte
	copy(b[:], preambleMagic)
	binary.LittleEndian.PutUint16(b[8:], p.Lowest)
	binary.LittleEndian.PutUint16(b[10:], p.Highest)
	b[12] = byte(p.Purpose)
	copy(b[16:], p.Cluster[:])
	copy(b[32:], p.Connection[:])
	binary.LittleEndian.PutUint32(b[60:], checksum(b[:60]))
	return append(dst, b[:]...)
}

// ReadPreamble reads a peer's preamble. It looks at the magic before it waits for the rest, so that somebody
// who speaks another protocol is told at once.
func ReadPreamble(r io.Reader) (p Preamble, err error) {
	const op = "read preamble of peer"
	var b [PreambleSize]byte
	n := len(preambleMagic)
	if _, err := io.ReadFull(r, b[:n]); err != nil {
		return p, fault.Wrap(fault.Unavailable, op, err)
	}
	if string(b[:n]) != preambleMagic {
		return p, fault.New(fault.Foreign, op, fmt.Sprintf("it starts with %q, a samovar node with %q", b[:n], preambleMagic))
	}
	if _, err := io.ReadFull(r, b[n:]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return p, fault.Wrap(fault.Unavailable, op, err)
	}
	if got, want := checksum(b[:60]), binary.LittleEndian.Uint32(b[60:]); got != want {
		return p, fault.New(fault.Corrupt, op, fmt.Sprintf("its checksum is %08x, its bytes give %08x", want, got))
	}
	p.Lowest = binary.LittleEndian.Uint16(b[8:])
	p.Highest = binary.LittleEndian.Uint16(b[10:])
	p.Purpose = Purpose(b[12])
	copy(p.Cluster[:], b[16:])
	copy(p.Connection[:], b[32:])
	return p, nil
}

// Open is the dialer's half: it sends local, reads the answer and compares. The caller set a deadline, and
// binds the Session.
func Open(conn io.ReadWriter, local Preamble) (Session, error) {
	if _, err := conn.Write(local.Append(nil)); err != nil {
		return Session{}, fault.Wrap(fault.Unavailable, "send preamble", err)
	}
	remote, err := ReadPreamble(conn)
	if err != nil {
		return Session{}, err
	}
	return agree(local, remote, local, remote)
}

// Answer is the acceptor's half. The answer is sent also to a peer that is then refused, so that both sides can
// name the difference. The first frame binds the Session.
func Answer(conn io.ReadWriter, local Preamble) (Session, error) {
	remote, err := ReadPreamble(conn)
	if err != nil {
		return Session{}, err
	}
	if _, err := conn.Write(local.Append(nil)); err != nil {
		return Session{}, fault.Wrap(fault.Unavailable, "send preamble", err)
	}
	return agree(local, remote, remote, local)
}

// agree compares two preambles; dialer and acceptor are the same two by role.
func agree(local, remote, dialer, acceptor Preamble) (Session, error) {
	refuse := func(kind fault.Kind, format string, args ...any) (Session, error) {
		return Session{}, fault.New(kind, "compare preambles", fmt.Sprintf(format, args...))
	}
	version := min(local.Highest, remote.Highest)
	switch {
	case local.Cluster != remote.Cluster:
		return refuse(fault.Foreign, "the peer belongs to cluster %x, this node to %x", remote.Cluster, local.Cluster)
	case local.Connection == remote.Connection:
		return refuse(fault.Foreign, "the peer sent back connection id %x: the connection leads to itself", local.Connection)
	case remote.Lowest > remote.Highest:
		return refuse(fault.Corrupt, "the peer speaks versions %d to %d", remote.Lowest, remote.Highest)
	case version < max(local.Lowest, remote.Lowest) || version > 255:
		return refuse(fault.Newer, "the peer speaks protocol versions %d to %d, this node %d to %d: update the older one",
			remote.Lowest, remote.Highest, local.Lowest, local.Highest)
	case dialer.Purpose != Engine && dialer.Purpose != Copier || acceptor.Purpose != Replica:
		return refuse(fault.Foreign, "the peer is here as %v, this node as %v: an engine or copier calls, a replica answers",
			remote.Purpose, local.Purpose)
	}
	return Session{
		// Different halves, so that a connection id used at both ends by mistake does not cancel out.
		Number: binary.LittleEndian.Uint64(dialer.Connection[:8]) ^
			binary.LittleEndian.Uint64(acceptor.Connection[8:]),
		Version: uint8(version),
		Local:   local.Purpose,
		Remote:  remote.Purpose,
	}, nil
}
