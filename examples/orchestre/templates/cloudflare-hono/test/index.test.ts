import { expect, test } from "vitest";
import { app } from "../src/index";

test("it says that it is well", async () => {
  const response = await app.request("/health");
  expect(response.status).toBe(200);
  expect(await response.json()).toEqual({ status: "ok" });
});

test("it says so when there is nothing", async () => {
  const response = await app.request("/nowhere");
  expect(response.status).toBe(404);
});
