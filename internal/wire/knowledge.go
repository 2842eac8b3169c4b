package wire

import (
	"encoding/binary"
	"fmt"

	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Bits of the field knowState.
const (
	stateBroken     = 1 << 0
	stateCatchingUp = 1 << 1
)

// appendKnowledge adds a Knowledge as fields of its own.
func appendKnowledge(dst []byte, k *replication.Knowledge) (out []byte, wrong string) {
	if len(k.History) > volume.HistoryLength || len(k.Records) > volume.MaxMembers {
		return dst, fmt.Sprintf("a history of %d and %d change records, the limits are %d and %d",
			len(k.History), len(k.Records), volume.HistoryLength, volume.MaxMembers)
	}
	le := binary.LittleEndian
	dst = appendBytes(dst, knowIncarnation, k.Incarnation[:])
	dst = appendNumber(dst, knowSize, k.Size)
	dst, at := beginField(dst, knowAccepted, mustUnderstand)
	if dst, wrong = appendConfiguration(dst, &k.Accepted); wrong != "" {
		return dst, wrong
	}
	dst = endField(dst, at)
	dst = appendGeneration(dst, knowPrepared, k.Prepared, k.PreparedID)
	dst, at = beginField(dst, knowHistory, mustUnderstand)
	for i := range k.History {
		dst = append(dst, k.History[i][:]...)
	}
	dst = endField(dst, at)
	var state uint64
	if k.Broken {
		state |= stateBroken
	}
	if k.CatchingUp {
		state |= stateCatchingUp
	}
	dst = appendNumber(dst, knowState, state)
	dst, at = beginField(dst, knowDoubt, mustUnderstand)
	for _, r := range k.Doubt {
		dst = le.AppendUint64(dst, r.Offset)
		dst = le.AppendUint64(dst, r.Length)
	}
	dst = endField(dst, at)
	dst = appendGeneration(dst, knowBase, k.Base, k.BaseID)
	if k.Missing != nil {
		dst, at = beginField(dst, knowMissing, mustUnderstand)
		dst = endField(k.Missing.Append(dst), at)
	}
	if len(k.Records) > 0 {
		dst, at = beginField(dst, knowRecords, mustUnderstand)
		for i := range k.Records {
			start := len(dst)
			dst = appendRecord(append(dst, 0, 0, 0, 0), &k.Records[i])
			le.PutUint32(dst[start:], uint32(len(dst)-start-4))
		}
		dst = endField(dst, at)
	}
	return dst, ""
}

func appendGeneration(dst []byte, tag uint16, g volume.Generation, id volume.GenerationID) []byte {
	dst, at := beginField(dst, tag, mustUnderstand)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(g))
	return endField(append(dst, id[:]...), at)
}

func parseGeneration(b []byte, g *volume.Generation, id *volume.GenerationID) string {
	if len(b) != 24 {
		return fmt.Sprintf("a generation and its id have %d bytes instead of 24", len(b))
	}
	*g = volume.Generation(binary.LittleEndian.Uint64(b))
	copy(id[:], b[8:])
	return ""
}

// knowRequired is what every Knowledge has.
const knowRequired = 1<<knowIncarnation | 1<<knowSize | 1<<knowAccepted | 1<<knowPrepared | 1<<knowHistory |
	1<<knowState | 1<<knowDoubt | 1<<knowBase

func parseKnowledge(b []byte, s *Session) (*replication.Knowledge, string) {
	k, seen := &replication.Knowledge{}, fieldSet(0)
	f := fields{rest: b}
	for len(f.rest) > 0 {
		tag, must, value, wrong := f.next()
		if wrong != "" {
			return nil, "knowledge: " + wrong
		}
		known, wrong := parseKnown(tag, value, k, s)
		switch {
		case wrong != "":
			return nil, "knowledge: " + wrong
		case known:
			seen |= 1 << tag
		case must:
			return nil, fmt.Sprintf("knowledge: field %d is unknown and must be understood", tag)
		}
	}
	if missing := knowRequired &^ seen; missing != 0 {
		return nil, fmt.Sprintf("knowledge lacks fields %#x", uint32(missing))
	}
	return k, ""
}

func parseKnown(tag uint16, value []byte, k *replication.Knowledge, s *Session) (known bool, wrong string) {
	var n uint64
	switch tag {
	case knowIncarnation:
		wrong = exact(k.Incarnation[:], value, "incarnation")
	case knowSize:
		k.Size, wrong = number(value, "size")
	case knowAccepted:
		wrong = parseConfiguration(value, &k.Accepted)
	case knowPrepared:
		wrong = parseGeneration(value, &k.Prepared, &k.PreparedID)
	case knowHistory:
		if len(value)%16 != 0 || len(value) > 16*volume.HistoryLength {
			return true, fmt.Sprintf("a history of %d bytes", len(value))
		}
		for i := 0; i < len(value); i += 16 {
			k.History = append(k.History, volume.GenerationID(value[i:i+16]))
		}
	case knowState:
		n, wrong = number(value, "state")
		if n&^(stateBroken|stateCatchingUp) != 0 {
			return true, fmt.Sprintf("unknown state %#x", n)
		}
		k.Broken, k.CatchingUp = n&stateBroken != 0, n&stateCatchingUp != 0
	case knowDoubt:
		k.Doubt, wrong = parseRanges(value)
	case knowBase:
		wrong = parseGeneration(value, &k.Base, &k.BaseID)
	case knowMissing:
		k.Missing, wrong = parseBitmap(value, s.blocks(k.Size))
	case knowRecords:
		k.Records, wrong = parseRecords(value, s.blocks(k.Size))
	default:
		return false, ""
	}
	return true, wrong
}

func parseRanges(b []byte) (list []volume.Range, wrong string) {
	if len(b)%16 != 0 {
		return nil, fmt.Sprintf("ranges of %d bytes", len(b))
	}
	for ; len(b) > 0; b = b[16:] {
		r := volume.Range{Offset: binary.LittleEndian.Uint64(b), Length: binary.LittleEndian.Uint64(b[8:])}
		if r.Offset > volume.MaxSize || r.Length > volume.MaxSize-r.Offset {
			return nil, fmt.Sprintf("a range at %d of %d bytes", r.Offset, r.Length)
		}
		list = append(list, r)
	}
	return list, ""
}

func parseRecords(b []byte, blocks uint64) (list []volume.ChangeRecord, wrong string) {
	for len(b) > 0 {
		if len(list) == volume.MaxMembers {
			return nil, "too many change records"
		}
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return nil, "a change record is cut off"
		}
		n := int(binary.LittleEndian.Uint32(b))
		r, wrong := parseRecord(b[4:][:n], blocks)
		if wrong != "" {
			return nil, wrong
		}
		list = append(list, r)
		b = b[4+n:]
	}
	return list, ""
}
