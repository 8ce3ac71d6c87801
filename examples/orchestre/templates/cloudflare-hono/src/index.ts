import { Hono } from "hono";
import { HTTPException } from "hono/http-exception";
import { secureHeaders } from "hono/secure-headers";

export const app = new Hono();

app.use(secureHeaders());

app.get("/", (c) => c.json({ name: "{{projectName}}" }));
app.get("/health", (c) => c.json({ status: "ok" }));

app.notFound((c) => c.json({ error: "There is nothing here" }, 404));
app.onError((error, c) => {
  if (error instanceof HTTPException) {
    return error.getResponse();
  }
  console.error(error);
  return c.json({ error: "Something went wrong" }, 500);
});

export default app;
