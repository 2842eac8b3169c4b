package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"samovar/internal/bitmap"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// appendBody adds the fields of m that are not zero, and says what is wrong with one that cannot be sent.
// names: volume and pool are among them.
func appendBody(dst []byte, m *replication.Message, names bool) (out []byte, wrong string) {
	if names {
		dst = appendBytes(dst, fieldVolume, m.Volume[:])
		dst = appendBytes(dst, fieldPool, m.Pool[:])
	}
	if m.Fence != (volume.Fence{}) {
		dst = appendFence(dst, m.Fence)
	}
	if m.Source != (volume.PoolID{}) {
		dst = appendBytes(dst, fieldSource, m.Source[:])
	}
	if m.Target != 0 {
		dst = appendNumber(dst, fieldTarget, m.Target)
	}
	if m.Generation != 0 {
		dst = appendNumber(dst, fieldGeneration, uint64(m.Generation))
	}
	if m.GenerationID != (volume.GenerationID{}) {
		dst = appendBytes(dst, fieldGenerationID, m.GenerationID[:])
	}
	var at int
	if m.Configuration != nil {
		dst, at = beginField(dst, fieldConfiguration, mustUnderstand)
		if dst, wrong = appendConfiguration(dst, m.Configuration); wrong != "" {
			return dst, wrong
		}
		dst = endField(dst, at)
	}
	if m.Bitmap != nil {
		dst, at = beginField(dst, fieldBitmap, mustUnderstand)
		dst = endField(m.Bitmap.Append(dst), at)
	}
	if m.Record != nil {
		dst, at = beginField(dst, fieldRecord, mustUnderstand)
		dst = endField(appendRecord(dst, m.Record), at)
	}
	if m.Knowledge != nil {
		dst, at = beginField(dst, fieldKnowledge, mustUnderstand)
		if dst, wrong = appendKnowledge(dst, m.Knowledge); wrong != "" {
			return dst, wrong
		}
		dst = endField(dst, at)
	}
	if m.Text != "" {
		dst, at = beginField(dst, fieldText, 0)
		dst = endField(append(dst, shorten(m.Text)...), at)
	}
	return dst, ""
}

func appendFence(dst []byte, f volume.Fence) []byte {
	dst, at := beginField(dst, fieldFence, mustUnderstand)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(f.Epoch))
	return endField(append(dst, f.Engine[:]...), at)
}

// shorten cuts a text for people to what a frame carries, between characters.
func shorten(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// appendConfiguration adds revision 8 and the record's JSON: the revision is not part of the record's own bytes.
func appendConfiguration(dst []byte, c *volume.Configuration) (out []byte, wrong string) {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(c.Revision))
	b, err := json.Marshal(c)
	if err != nil {
		return dst, "the configuration cannot be written: " + err.Error()
	}
	if len(b) > maxConfiguration {
		return dst, fmt.Sprintf("a configuration of %d bytes, the limit is %d", len(b), maxConfiguration)
	}
	return append(dst, b...), ""
}

func parseConfiguration(b []byte, c *volume.Configuration) (wrong string) {
	if len(b) < 8 || len(b) > 8+maxConfiguration {
		return fmt.Sprintf("a configuration of %d bytes", len(b))
	}
	if err := json.Unmarshal(b[8:], c); err != nil {
		return "the configuration cannot be read: " + err.Error()
	}
	c.Revision = volume.Revision(binary.LittleEndian.Uint64(b))
	return ""
}

// appendRecord adds pool 16, start 8, and the runs of the bitmap.
func appendRecord(dst []byte, r *volume.ChangeRecord) []byte {
	dst = append(dst, r.Pool[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Start))
	return r.Blocks.Append(dst)
}

const recordHead = 24

func parseRecord(b []byte, blocks uint64) (r volume.ChangeRecord, wrong string) {
	if len(b) < recordHead {
		return r, fmt.Sprintf("a change record of %d bytes", len(b))
	}
	copy(r.Pool[:], b)
	r.Start = volume.Generation(binary.LittleEndian.Uint64(b[16:]))
	r.Blocks, wrong = parseBitmap(b[recordHead:], blocks)
	return r, wrong
}

func parseBitmap(b []byte, blocks uint64) (*bitmap.Bitmap, string) {
	set, err := bitmap.Parse(b, blocks)
	if err != nil {
		return nil, err.Error()
	}
	return set, ""
}

// parseBody reads the fields of a body into m and tells which were there. s gives the limit of bitmaps and
// learns the sizes that records state.
func parseBody(b []byte, m *replication.Message, s *Session) (seen fieldSet, wrong string) {
	f := fields{rest: b}
	for len(f.rest) > 0 {
		tag, must, value, wrong := f.next()
		if wrong != "" {
			return seen, wrong
		}
		known, wrong := parseField(tag, value, m, s)
		switch {
		case wrong != "":
			return seen, wrong
		case known:
			seen |= 1 << tag
		case must:
			return seen, fmt.Sprintf("field %d is unknown and must be understood", tag)
		}
	}
	return seen, ""
}

func parseField(tag uint16, value []byte, m *replication.Message, s *Session) (known bool, wrong string) {
	var n uint64
	switch tag {
	case fieldVolume:
		wrong = exact(m.Volume[:], value, "volume id")
	case fieldPool:
		wrong = exact(m.Pool[:], value, "pool id")
	case fieldFence:
		if len(value) != 24 {
			return true, fmt.Sprintf("fence has %d bytes instead of 24", len(value))
		}
		m.Fence.Epoch = volume.Epoch(binary.LittleEndian.Uint64(value))
		copy(m.Fence.Engine[:], value[8:])
		if m.Fence == (volume.Fence{}) {
			wrong = leftOut("fence")
		}
	case fieldSource:
		if wrong = exact(m.Source[:], value, "source"); wrong == "" && m.Source == (volume.PoolID{}) {
			wrong = leftOut("source")
		}
	case fieldTarget:
		m.Target, wrong = number(value, "target")
	case fieldGeneration:
		n, wrong = number(value, "generation")
		m.Generation = volume.Generation(n)
	case fieldGenerationID:
		wrong = exact(m.GenerationID[:], value, "generation id")
	case fieldConfiguration:
		m.Configuration = new(volume.Configuration)
		wrong = parseConfiguration(value, m.Configuration)
		s.grow(m.Configuration.Size)
	case fieldBitmap:
		m.Bitmap, wrong = parseBitmap(value, s.blocks(0))
	case fieldRecord:
		var r volume.ChangeRecord
		r, wrong = parseRecord(value, s.blocks(0))
		m.Record = &r
	case fieldKnowledge:
		m.Knowledge, wrong = parseKnowledge(value, s)
	case fieldText:
		if len(value) > maxText {
			return true, fmt.Sprintf("a text of %d bytes, the limit is %d", len(value), maxText)
		}
		m.Text = string(value)
	default:
		return false, ""
	}
	return true, wrong
}

// leftOut is what is wrong with a zero where zero is said by leaving the field out: then a kind that needs the
// field has it.
func leftOut(what string) string { return "the " + what + " is zero instead of left out" }
