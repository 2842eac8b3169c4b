package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// reseal makes the sums of the frame at the start of b right again, as far as its bytes are there.
func reseal(b []byte) {
	le := binary.LittleEndian
	if len(b) < headerSize {
		return
	}
	body, payload := uint64(le.Uint32(b[12:])), uint64(le.Uint32(b[16:]))
	rest := b[headerSize:]
	n := min(body, uint64(len(rest)))
	le.PutUint32(b[96:], checksum(rest[:n]))
	rest = rest[n:]
	le.PutUint32(b[20:], checksum(rest[:min(payload, uint64(len(rest)))]))
	le.PutUint32(b[100:], checksum(b[:100]))
}

// withBody puts another body into a frame without payload.
func withBody(frame, body []byte) []byte {
	b := append(bytes.Clone(frame[:headerSize]), body...)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(body)))
	reseal(b)
	return b
}

func field(tag, flags uint16, value string) []byte {
	dst, at := beginField(nil, tag, flags)
	return endField(append(dst, value...), at)
}

// plainFrame is a frame of kind k with a valid header and whatever else its zero message needs.
func plainFrame(t *testing.T, k replication.Kind) []byte {
	from, _ := pair(k)
	m := replication.Message{Kind: k, Volume: from.Volume, Pool: from.Pool}
	if rules[k].opens {
		m.Fence.Epoch = from.Epoch
	}
	return encode(t, from, m)
}

// A header that lies is refused with right sums too, before memory is taken.
func TestHeaderLies(t *testing.T) {
	le := binary.LittleEndian
	huge := uint64(volume.MaxSize) + 1
	for name, test := range map[string]struct {
		kind   replication.Kind
		change func(b []byte)
		want   fault.Kind
		words  string
	}{
		"magic":          {replication.Ping, func(b []byte) { b[0]++ }, fault.Corrupt, "starts with"},
		"version":        {replication.Ping, func(b []byte) { b[4] = 2 }, fault.Corrupt, "version 2"},
		"kind 0":         {replication.Ping, func(b []byte) { b[5] = 0 }, fault.Corrupt, "kind 0"},
		"kind":           {replication.Ping, func(b []byte) { b[5] = 200 }, fault.Corrupt, "kind 200"},
		"header length":  {replication.Ping, func(b []byte) { b[7] = 112 }, fault.Corrupt, "112"},
		"flags":          {replication.Ping, func(b []byte) { b[9] = 1 }, fault.Corrupt, "flags 0x100"},
		"forward":        {replication.Sync, func(b []byte) { b[10] = 2 }, fault.Newer, "2 replicas"},
		"body":           {replication.Ping, func(b []byte) { le.PutUint32(b[12:], MaxBody+1) }, fault.Corrupt, "limit"},
		"payload":        {replication.Ack, func(b []byte) { le.PutUint32(b[16:], maxPayload+1) }, fault.Corrupt, "limit"},
		"most":           {replication.Ack, func(b []byte) { le.PutUint32(b[16:], ^uint32(0)) }, fault.Corrupt, "limit"},
		"plain payload":  {replication.Ack, func(b []byte) { le.PutUint32(b[16:], volume.MaxRequest+1) }, fault.Corrupt, "payload"},
		"no payload":     {replication.Ping, func(b []byte) { le.PutUint32(b[16:], 1) }, fault.Corrupt, "payload"},
		"write":          {replication.Sync, func(b []byte) { b[5] = byte(replication.Write) }, fault.Corrupt, "payload of 0"},
		"write's range":  {replication.Sync, func(b []byte) { b[5] = byte(replication.Write); b[16] = 8; b[72] = 9 }, fault.Corrupt, "range of 9"},
		"fetched":        {replication.Ack, func(b []byte) { b[5] = byte(replication.Fetched); b[16] = 8 }, fault.Corrupt, "payload of 8"},
		"table":          {replication.Ack, func(b []byte) { b[8] = flagTable; b[16] = 8 }, fault.Corrupt, "table"},
		"table of write": {replication.Sync, func(b []byte) { b[5] = byte(replication.Write); b[8] = flagTable; b[16] = 80 }, fault.Corrupt, "table"},
		"offset":         {replication.Read, func(b []byte) { le.PutUint64(b[64:], huge) }, fault.Corrupt, "offset"},
		"length":         {replication.Read, func(b []byte) { le.PutUint64(b[72:], volume.MaxRequest+1) }, fault.Corrupt, "length"},
		"end":            {replication.Read, func(b []byte) { le.PutUint64(b[64:], huge-5); b[72] = 9 }, fault.Corrupt, "offset"},
		"overflow":       {replication.Reserve, func(b []byte) { le.PutUint64(b[64:], 9); le.PutUint64(b[72:], ^uint64(0)-3) }, fault.Corrupt, "length"},
		"no body":        {replication.Hello, func(b []byte) { b[12] = 0 }, fault.Corrupt, "missing"},
	} {
		_, to := pair(test.kind)
		b := plainFrame(t, test.kind)
		test.change(b)
		reseal(b)
		_, err := NewDecoder(bytes.NewReader(b), block.NewPool(), to).Next()
		if fault.KindOf(err) != test.want || !strings.Contains(err.Error(), test.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Bodies that lie are refused; fields from the future are skipped unless they must be understood.
func TestBodyLies(t *testing.T) {
	id := strings.Repeat("i", 16)
	hello := string(field(fieldVolume, 1, "\x01\x02\x03"+strings.Repeat("\x00", 13))) +
		string(field(fieldPool, 1, "\x04\x05\x06"+strings.Repeat("\x00", 13))) +
		string(field(fieldFence, 1, "\x07\x00\x00\x00\x00\x00\x00\x00"+id))
	for _, test := range []struct {
		name  string
		kind  replication.Kind
		body  string
		words string // "": accepted
	}{
		{"hello", replication.Hello, hello, ""},
		{"skipped", replication.Hello, hello + string(field(99, 0, "future")), ""},
		{"must understand", replication.Hello, hello + string(field(99, 1, "future")), "field 99 is unknown"},
		{"forward list", replication.Sync, string(field(6, 1, id)), "field 6 is unknown"},
		{"field flags", replication.Hello, hello + string(field(99, 2, "future")), "flags 0x2"},
		{"twice", replication.Hello, hello + string(field(fieldFence, 1, strings.Repeat("x", 24))), "follows field 3"},
		{"order", replication.Hello, hello + string(field(2, 1, id)), "follows field 3"},
		{"tag 0", replication.Sync, string(field(0, 0, "")), "field 0"},
		{"cut", replication.Hello, hello + "\x20\x00\x00\x00", "cut off"},
		{"long", replication.Sync, "\x20\x00\x00\x00\xff\xff\xff\xff", "4294967295"},
		{"identity", replication.Sync, string(field(fieldVolume, 1, id)), "of its own"},
		{"short id", replication.Hello, string(field(fieldVolume, 1, "abc")), "3 bytes instead of 16"},
		{"fence", replication.Sync, string(field(fieldFence, 1, "abc")), "fence has 3"},
		{"zero fence", replication.Sync, string(field(fieldFence, 1, strings.Repeat("\x00", 24))), "left out"},
		{"zero source", replication.Sync, string(field(fieldSource, 1, strings.Repeat("\x00", 16))), "left out"},
		{"short target", replication.Sync, string(field(fieldTarget, 1, "\x01")), "1 bytes instead of 8"},
		{"missing", replication.Accept, "", "missing"},
		{"configuration", replication.Accept, string(field(fieldConfiguration, 1, "12345678{]")), "cannot be read"},
		{"empty configuration", replication.Accept, string(field(fieldConfiguration, 1, "")), "of 0 bytes"},
		{"bitmap", replication.CatchUp, string(field(fieldBitmap, 1, "\x80\x80\x01\x01")), "outside the volume"},
		{"record", replication.Records, string(field(fieldRecord, 1, id)), "record of 16"},
		{"text", replication.Sync, string(field(fieldText, 0, strings.Repeat("x", maxText+1))), "text of"},
		{"knowledge", replication.Sync, string(field(fieldKnowledge, 1, "")), "lacks fields"},
		{"known history", replication.Sync, string(field(fieldKnowledge, 1, string(field(knowHistory, 1, id+"x")))), "history"},
		{"known state", replication.Sync, string(field(fieldKnowledge, 1, string(field(knowState, 1, "\x04\x00\x00\x00\x00\x00\x00\x00")))), "unknown state"},
		{"known doubt", replication.Sync, string(field(fieldKnowledge, 1, string(field(knowDoubt, 1, strings.Repeat("\xff", 16))))), "a range at"},
		{"known records", replication.Sync, string(field(fieldKnowledge, 1, string(field(knowRecords, 1, "\xff\x00\x00\x00")))), "cut off"},
		{"known future", replication.Sync, string(field(fieldKnowledge, 1, string(field(99, 1, "")))), "field 99 is unknown"},
	} {
		_, to := pair(test.kind)
		var frame []byte
		if rules[test.kind].needs&^identity == 0 || test.kind == replication.Hello {
			frame = plainFrame(t, test.kind)
		} else {
			frame = plainFrame(t, replication.Sync)
			frame[5] = byte(test.kind)
		}
		msgs, err := NewDecoder(bytes.NewReader(withBody(frame, []byte(test.body))), block.NewPool(), to).Next()
		switch {
		case test.words == "" && (err != nil || len(msgs) != 1):
			t.Errorf("%s: %v", test.name, err)
		case test.words != "" && (fault.KindOf(err) != fault.Corrupt || !strings.Contains(err.Error(), test.words)):
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// Tables of segments that lie are refused, and what was read of them is released.
func TestTableLies(t *testing.T) {
	pool := block.NewPool()
	from, to := pair(replication.Fetched)
	for name, change := range map[string]func(table []byte){
		"count 0":    func(b []byte) { b[0] = 0 },
		"count more": func(b []byte) { b[0] = 200 },
		"count most": func(b []byte) { b[3] = 255 },
		"zero":       func(b []byte) { b[4] = 1 },
		"gap":        func(b []byte) { b[tableHead+tableEntry]++ },
		"length 0":   func(b []byte) { b[tableHead+tableEntry+8], b[tableHead+tableEntry+9] = 0, 0 },
		"longer":     func(b []byte) { b[tableHead+tableEntry+8]++ },
		"overflow":   func(b []byte) { b[tableHead+tableEntry+15] = 255 },
		"kind":       func(b []byte) { b[tableHead+16] = 3 },
		"kind swap":  func(b []byte) { b[tableHead+16] = segmentHole },
		"entry zero": func(b []byte) { b[tableHead+20] = 1 },
	} {
		rng := rand.New(rand.NewPCG(8, 8))
		s := &Segments{List: []Segment{
			{Range: volume.Range{Offset: 4096, Length: 600}, Data: randomBuffer(rng, pool, 600)},
			{Range: volume.Range{Offset: 4696, Length: 700}},
			{Range: volume.Range{Offset: 5396, Length: 800}, Data: randomBuffer(rng, pool, 800)},
		}}
		frame := encode(t, from, replication.Message{Kind: replication.Fetched, Range: s.Range(), Payload: s,
			Volume: from.Volume, Pool: from.Pool})
		change(frame[headerSize:])
		reseal(frame)
		_, err := NewDecoder(bytes.NewReader(frame), pool, to).Next()
		if fault.KindOf(err) != fault.Corrupt || strings.Contains(err.Error(), "checksum") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A body that claims the most and never comes costs little memory.
func TestLongBodyNeverComes(t *testing.T) {
	_, to := pair(replication.CatchUp)
	frame := plainFrame(t, replication.Sync)
	frame[5] = byte(replication.CatchUp)
	binary.LittleEndian.PutUint32(frame[12:], MaxBody)
	reseal(frame)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := NewDecoder(io.MultiReader(bytes.NewReader(frame), bytes.NewReader(make([]byte, 100<<10))), block.NewPool(), to).Next()
	runtime.ReadMemStats(&after)
	wantFault(t, err, fault.Unavailable)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Fatalf("%d bytes were allocated", grown)
	}
}

// A bitmap may reach to the end of the volume and no further; the size is learned from records.
func TestBitmapLimit(t *testing.T) {
	from, to := pair(replication.CatchUp)
	for _, size := range []uint64{0, 100 * volume.BlockSize, 100*volume.BlockSize + 512} {
		to.Size = size
		for _, block := range []uint64{99, 100, 101, volume.MaxSize/volume.BlockSize - 1, volume.MaxSize / volume.BlockSize} {
			m := replication.Message{Kind: replication.CatchUp, Volume: from.Volume, Pool: from.Pool, Bitmap: oneBlock(block)}
			_, err := NewDecoder(bytes.NewReader(encode(t, from, m)), nil, to).Next()
			limit := (size + volume.BlockSize - 1) / volume.BlockSize
			if size == 0 {
				limit = volume.MaxSize / volume.BlockSize
			}
			if (err == nil) != (block < limit) {
				t.Errorf("block %d of %d bytes: %v", block, size, err)
			}
		}
	}
	to.Size = 0
	accept := replication.Message{Kind: replication.Accept, Volume: from.Volume, Pool: from.Pool,
		Configuration: &volume.Configuration{Size: 5 * volume.BlockSize}}
	catchUp := replication.Message{Kind: replication.CatchUp, Volume: from.Volume, Pool: from.Pool, Bitmap: oneBlock(5)}
	d := NewDecoder(bytes.NewReader(encode(t, from, accept, catchUp)), nil, to)
	if msgs, err := d.Next(); len(msgs) != 1 || err != nil {
		t.Fatal(msgs, err)
	}
	_, err := d.Next()
	wantFault(t, err, fault.Corrupt)
}
