package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"samovar/internal/fault"
	"samovar/internal/volume"
)

// stateBody is the body of the state file, as JSON: a person can read it behind the 64 bytes of the frame. The
// order of fields is that of this type, so equal states have equal bytes.
type stateBody struct {
	Epoch      volume.Epoch          `json:"epoch"`
	Engine     volume.EngineID       `json:"engine"`
	Revision   volume.Revision       `json:"revision"`
	Accepted   volume.Configuration  `json:"accepted"`
	Prepared   volume.Generation     `json:"prepared"`
	PreparedID volume.GenerationID   `json:"preparedId"`
	History    []volume.GenerationID `json:"history"`
	CatchingUp bool                  `json:"catchingUp"`
	Base       volume.Generation     `json:"base"`
	BaseID     volume.GenerationID   `json:"baseId"`
}

// encodeState makes the state file of a replica.
func encodeState(s volume.ReplicaState) ([]byte, error) {
	body, err := json.Marshal(stateBody{
		Epoch: s.Fence.Epoch, Engine: s.Fence.Engine, Revision: s.Accepted.Revision, Accepted: s.Accepted,
		Prepared: s.Prepared, PreparedID: s.PreparedID, History: s.History,
		CatchingUp: s.CatchingUp, Base: s.Base, BaseID: s.BaseID,
	})
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "encode state of volume "+s.Volume.String(), err)
	}
	return encodeFrame(frameKind{magicState, stateVersion, s.Pool, s.Volume}, body), nil
}

// parseState reads a state file.
func parseState(file []byte, pool volume.PoolID, id volume.ID) (volume.ReplicaState, error) {
	body, err := parseFrame(frameKind{magicState, stateVersion, pool, id}, file)
	if err != nil {
		return volume.ReplicaState{}, err
	}
	var s stateBody
	if err := parseJSON(body, &s); err != nil {
		return volume.ReplicaState{}, err
	}
	const op = "check state"
	switch {
	case s.Accepted.Volume != id:
		return volume.ReplicaState{}, fault.New(fault.Corrupt, op, "its configuration is that of another volume")
	case s.Accepted.Size == 0 || s.Accepted.Size%volume.SectorSize != 0 || s.Accepted.Size > volume.MaxSize:
		return volume.ReplicaState{}, fault.New(fault.Corrupt, op, "its volume has an impossible size")
	case len(s.History) > volume.HistoryLength:
		return volume.ReplicaState{}, fault.New(fault.Corrupt, op, "its history is too long")
	}
	s.Accepted.Revision = s.Revision
	return volume.ReplicaState{
		Volume: id, Pool: pool, Fence: volume.Fence{Epoch: s.Epoch, Engine: s.Engine}, Accepted: s.Accepted,
		Prepared: s.Prepared, PreparedID: s.PreparedID, History: s.History,
		CatchingUp: s.CatchingUp, Base: s.Base, BaseID: s.BaseID,
	}, nil
}

// parseJSON reads one JSON value and nothing else. A field that it does not know under a good checksum was
// written by a newer samovar: to drop it silently would lose what that one relied on.
func parseJSON(body []byte, into any) error {
	const op = "read file"
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if json.Unmarshal(body, into) == nil {
			return fault.New(fault.Newer, op,
				"a newer version of samovar wrote it ("+err.Error()+"); start that version or a later one")
		}
		return fault.Wrap(fault.Corrupt, op, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fault.New(fault.Corrupt, op, "there is something behind its end")
	}
	return nil
}
