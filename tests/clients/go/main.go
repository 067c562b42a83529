// A client of penstock by docs/wire.md alone: arrow-go and no code of penstock's.
//
// main HOST:PORT TOKEN lists, reads store/seed, and writes store/go, store/go-write and topic/go; it prints what the
// server has answered, as one JSON object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

type object map[string]any

var schema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "city", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

func main() {
	seen, err := run(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(encoded(seen)))
}

func run(address, token string) (object, error) {
	client, err := flight.NewClientWithMiddleware(
		address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	stranger := context.Background()
	known, err := client.AuthenticateBasicToken(stranger, "anybody", token)
	if err != nil {
		return nil, err
	}

	seen := object{}
	if seen["listed"], err = list(known, client); err != nil {
		return nil, err
	}
	seed := object{"v": 1, "path": "store/seed"}
	if seen["seed"], err = read(known, client, seed); err != nil {
		return nil, err
	}
	filtered := object{"v": 1, "path": "store/seed", "columns": []string{"id"}, "filter": "city is null"}
	if seen["filtered"], err = read(known, client, filtered); err != nil {
		return nil, err
	}
	bare := &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"store", "go"}}
	if seen["receipt"], err = put(known, client, bare, true, 1, 2, 3); err != nil {
		return nil, err
	}
	bare.Path = []string{"topic", "go"}
	if seen["appended"], err = put(known, client, bare, true, 1); err != nil {
		return nil, err
	}
	if seen["summary"], err = write(known, stranger, client); err != nil {
		return nil, err
	}
	bare.Path = []string{"store", "go-cut"}
	seen["cut"] = refusal(func(trailer *metadata.MD) error {
		_, err := put(known, client, bare, false, 1)
		return err
	})
	seen["denied"] = refusal(func(trailer *metadata.MD) error {
		_, err := client.GetFlightInfo(stranger, command(seed), grpc.Trailer(trailer))
		return err
	})
	return seen, nil
}

// list returns the paths of everything, by the kind that the server calls it.
func list(ctx context.Context, client flight.Client) (object, error) {
	stream, err := client.ListFlights(ctx, &flight.Criteria{})
	if err != nil {
		return nil, err
	}
	paths := object{}
	for {
		info, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return paths, nil
		} else if err != nil {
			return nil, err
		}
		var entry struct{ Kind, Path string }
		if err := json.Unmarshal(info.AppMetadata, &entry); err != nil {
			return nil, err
		}
		paths[entry.Path] = entry.Kind
	}
}

// read counts the rows of all endpoints, in order, and adds their ids up; the tickets need no token.
func read(ctx context.Context, client flight.Client, what object) (object, error) {
	info, err := client.GetFlightInfo(ctx, command(what))
	if err != nil {
		return nil, err
	}
	rows, sum, ordered, last := int64(0), int64(0), true, int64(-1)
	for _, endpoint := range info.Endpoint {
		stream, err := client.DoGet(context.Background(), endpoint.Ticket)
		if err != nil {
			return nil, err
		}
		reader, err := flight.NewRecordReader(stream)
		if err != nil {
			return nil, err
		}
		for reader.Next() {
			ids := reader.RecordBatch().Column(0).(*array.Int64)
			rows += int64(ids.Len())
			for _, id := range ids.Int64Values() {
				sum, ordered, last = sum+id, ordered && id > last, id
			}
		}
		if err := reader.Err(); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		reader.Release()
	}
	return object{"endpoints": len(info.Endpoint), "rows": rows, "sum": sum, "ordered": ordered}, nil
}

// write makes a dataset of two attempts of three; the tasks have the ticket alone.
func write(known, stranger context.Context, client flight.Client) (object, error) {
	opened, err := call(known, client, "write.open", object{"v": 1, "path": "store/go-write"})
	if err != nil {
		return nil, err
	}
	var attempts []any
	for first := int64(0); first < 6; first += 2 {
		task := command(object{"v": 1, "ticket": opened["ticket"], "attempt": uuid.NewString()})
		receipt, err := put(stranger, client, task, true, first, first+1)
		if err != nil {
			return nil, err
		}
		attempts = append(attempts, receipt["attempt"])
	}
	return call(stranger, client, "write.finish",
		object{"v": 1, "ticket": opened["ticket"], "attempts": attempts[1:]})
}

// put sends each id as a batch of its own, then the trailer, and returns the receipt.
func put(
	ctx context.Context, client flight.Client, to *flight.FlightDescriptor, whole bool, ids ...int64,
) (object, error) {
	stream, err := client.DoPut(ctx)
	if err != nil {
		return nil, err
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(to)
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer builder.Release()
	for _, id := range ids {
		builder.Field(0).(*array.Int64Builder).Append(id)
		builder.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("city %d", id))
		batch := builder.NewRecordBatch()
		err := writer.Write(batch)
		batch.Release()
		if err != nil {
			return nil, err
		}
	}
	if whole {
		if err := writer.WriteMetadata(encoded(object{"v": 1, "batches": len(ids), "rows": len(ids)})); err != nil {
			return nil, err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	return decoded(answer.AppMetadata)
}

func call(ctx context.Context, client flight.Client, name string, body object) (object, error) {
	stream, err := client.DoAction(ctx, &flight.Action{Type: name, Body: encoded(body)})
	if err != nil {
		return nil, err
	}
	result, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	return decoded(result.Body)
}

// refusal returns the error of a call, and the code that its trailer has.
func refusal(try func(*metadata.MD) error) object {
	trailer := metadata.MD{}
	err := try(&trailer)
	if err == nil {
		return object{}
	}
	seen := object{"text": err.Error()}
	if details := trailer.Get("grpc-status-details-bin"); len(details) > 0 {
		seen["details"] = json.RawMessage(strings.Join(details, ""))
	}
	return seen
}

func command(body object) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: encoded(body)}
}

func encoded(body object) []byte {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return text
}

func decoded(text []byte) (object, error) {
	body := object{}
	return body, json.Unmarshal(text, &body)
}
